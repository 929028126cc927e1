"""Verbs that look at a cluster and change it: topics, brokers, groups, lag, check.

One module for each verb; `commands.VERBS` names them.
"""
