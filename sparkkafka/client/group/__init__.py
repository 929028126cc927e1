"""Consumer groups: membership under both protocols, assignors, commits and committed offsets.

Begin with `membership.py`, which has what both protocols share: the heartbeat thread with
max.poll.interval.ms, and the member that `poll` drives.
`classic_membership.py` has the classic protocol (JoinGroup, SyncGroup, `RejoinRequest`),
`consumer_group_membership.py` that of KIP-848 (heartbeats only).
"""
