"""Tools for tests against Kafka: real brokers (`KafkaCluster`), a real Schema Registry
(`SchemaRegistry`) and fake brokers with injected faults (`FakeCluster`).

Import them from their modules, `sparkkafka.testing.kafka.cluster`, `sparkkafka.testing.registry`
and so on, or use the fixtures of the pytest plugin. Nothing is imported here: pytest loads this
package in every run on a machine that has sparkkafka installed.
"""
