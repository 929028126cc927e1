"""Records of batches <-> Arrow columns, without a Python object for a record.

Begin with `columns.py`, what the rest of the package uses; `decode.py` and `encode.py` do the work.
"""
