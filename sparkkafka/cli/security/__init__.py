"""Verbs about who may do what: acls, users.

`acl_sets.py` has the ACLs that a producer, a consumer and an exactly-once query need.
"""
