"""The fake cluster's ACLs and SCRAM users: stored and told, and nobody is held to them.

Begin with `state.py`.
"""
