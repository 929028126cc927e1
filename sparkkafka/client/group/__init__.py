"""Consumer groups: members of both protocols (classic and KIP-848), assignors, committed offsets.

Begin with `member.py`: what a rebalance means for a consumer, by JoinGroup and SyncGroup or by
KIP-848's heartbeats. Each kind has a thread; `member_thread.py` is what both threads share.
"""
