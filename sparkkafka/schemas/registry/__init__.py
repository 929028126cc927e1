"""The Schema Registry (Confluent's REST API): schemas by id, and ids of schemas."""
