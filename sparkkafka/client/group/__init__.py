"""Consumer groups: members of both protocols (classic and KIP-848), assignors, committed offsets.

Begin with `classic_member.py` (rebalances by JoinGroup and SyncGroup) or `consumer_member.py` (by
KIP-848's heartbeats). Each has a thread beside it; `member_thread.py` is what both share.
"""
