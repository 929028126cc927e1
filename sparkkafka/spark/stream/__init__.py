"""Streams: offsets and admission of micro-batches, progress, and the streaming sink.

Begin with `reader.py` or `writer.py`.
"""
