"""Consumer groups: members of both protocols (classic and KIP-848), assignors, committed offsets.

Begin with `membership.py`, what both protocols share, then `classic_member.py` or
`consumer_member.py`; each has a thread beside it.
"""
