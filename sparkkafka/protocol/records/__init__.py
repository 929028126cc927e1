"""Record batches: headers, checksums, compression, control batches, and the formats before them.

Begin with `batches.py`.
"""
