"""The fake cluster's consumer groups, of both protocols.

Begin with `state.py`.
"""
