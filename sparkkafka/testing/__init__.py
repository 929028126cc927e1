"""Tools for tests against Kafka: real brokers (`KafkaCluster`) and scripted ones (`FakeCluster`).

Import them from their modules, `sparkkafka.testing.kafka.cluster` and so on, or use the fixtures of
the pytest plugin. Nothing is imported here: pytest loads this package in every run on a machine
that has sparkkafka installed.
"""
