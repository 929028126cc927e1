"""Schemas: the bytes of keys and values become typed Arrow columns, and back. No Spark here.

Begin with `values.py`: what a schema, a decoder and an encoder are. `avro`, `protobuf` and `json`
implement them, `registry` asks the Schema Registry, `framing.py` finds the schema's id in a record,
and `column.py` does all of it for one column.
"""
