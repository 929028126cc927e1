"""Converts the bytes of keys and values to typed Arrow columns, and back. No Spark here.

Begin with `values.py`, which says what a schema, a decoder and an encoder are. `avro`, `protobuf`
and `json` implement them, `registry` is the client of the Schema Registry, `framings.py` reads and
writes the schema's id in a record, `schema_choice.py` chooses a column's schema, and `column.py`
decodes and encodes one column from end to end.
"""
