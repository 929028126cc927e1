"""Record batches: headers, checksums, compression, and one record at a time (the general path).

Begin with `batches.py`.
"""
