"""Envelopes of change data capture: the row and what happened to it, out of decoded payloads.

A format decodes an envelope into one struct column. `connect_types` says what its fields mean in
Kafka Connect, `semantic_types` converts them to Spark's types, `debezium` takes the row of the
table out of the envelope, and `decode` puts these together as a decoder.
"""
