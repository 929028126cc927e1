"""JSON: by JSON Schema or a given type, texts to columns, and columns to texts.

Begin with `format.py`, the interface. `document.py` reads a JSON Schema, `plan.py` makes of it and
of a wanted type what is to be read. `decode.py` has `columns.py` read many texts at once by
pyarrow's reader, and `rows.py` the texts that it does not take, one by one (`texts.py`, `times.py`:
their syntax). `encode.py` writes, `describe.py` makes a schema of a type, `inference.py` a type of
samples.
"""
