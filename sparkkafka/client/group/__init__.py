"""Consumer groups: membership under both protocols, assignors, commits and committed offsets.

Begin with `membership.py`, which both protocols share; `classic_membership.py` has the classic one
(JoinGroup, SyncGroup), `consumer_group_membership.py` that of KIP-848 (heartbeats only).
"""
