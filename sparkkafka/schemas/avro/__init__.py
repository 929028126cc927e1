"""Avro values to and from Arrow columns by NumPy, without a Python object for a row.

`format.py` has the interface. `schema.py` parses schemas, and `types.py` has the Arrow type of each
Avro type. `resolve.py` matches the writer's schema, the reader's schema and the column's type, and
compiles a decoder or an encoder.

A decoder (`decode.py`) reads one field of all rows in a few steps and moves the rows' `cursor.py`;
what is not read is skipped (`skip.py`). An encoder (`encode.py`) returns a few columns of bytes for
each field, which are joined row by row. Recursive records become JSON text (`json_text.py`).
"""
