"""Streaming reads: the reader and its planner, the progress of queries, and a group that follows.

Begin with `reader.py`, which also makes the offsets of Spark's checkpoint. The sink is in `write`.
"""
