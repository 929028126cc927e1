"""Decodes JSON texts to typed columns and encodes columns as JSON, by a JSON Schema or a type.

Begin with `format.py`, the interface. `schema.py` reads and writes JSON Schemas, and `plan.py`
decides how values are read, by a schema and the column's type. `decode.py` has pyarrow read many
texts at once, and `normalizer.py` normalizes those that pyarrow cannot read (`syntax.py` parses
them). `encode.py` writes, and `inference.py` finds the type of samples.
"""
