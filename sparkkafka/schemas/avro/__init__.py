"""Avro: its schemas as Arrow types, datums to columns by NumPy, and columns to datums.

Begin with `format.py`, the interface. `schema.py` parses, `types.py` says which type becomes which.
Reading: `resolve.py` compiles writer's and reader's schema to readers, each of which reads one
field of all rows in one step (`scalars.py`, `nested.py`) and moves the rows' `cursor.py`;
`wire_plan.py` and `wires.py` move over what is not read.
Writing: `encoder.py` compiles a schema and a column's type to writers (`encode_scalars.py`,
`encode_nested.py`), which first say each row's size and then fill in the bytes.
"""
