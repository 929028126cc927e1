"""Admin: topics, settings, groups, offsets, transactions and brokers of a cluster.

Begin with `admin.py`.
"""
