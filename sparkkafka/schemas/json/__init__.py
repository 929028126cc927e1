"""JSON: by JSON Schema or a given type, texts to columns, and columns to texts.

Begin with `format.py`, the interface. `schema.py` reads and writes JSON Schemas, and `plan.py`
decides by one and by the wanted type how values are read. `decode.py` has pyarrow read many texts
at once, and `row_reader.py` normalizes those that pyarrow cannot read (`syntax.py` parses them).
`encode.py` writes, and `inference.py` finds the type of samples.
"""
