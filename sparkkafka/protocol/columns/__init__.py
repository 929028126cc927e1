"""Records of batches <-> Arrow columns, without a Python object for a record.

Begin with `decode.py` and `encode.py`; `columns.py` has what a reader gets.
"""
