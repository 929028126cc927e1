"""Streams: offsets and limits of micro-batches, lag and commits to a group, the streaming sink.

Begin with `reader.py` or `writer.py`; `reader.py` also makes the offsets of Spark's checkpoint.
"""
