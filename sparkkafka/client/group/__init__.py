"""Consumer groups: members of both protocols (classic and KIP-848), assignors, committed offsets.

Begin with `member.py`.
"""
