"""What the clients count: the figures of `Consumer.metrics()`, `Producer.metrics()` and
`Admin.metrics()`, under Kafka's names.

`sampled` has one series of values, `network` what a client's connections do, `fetching` and
`sending` the rest. Whoever counts does so once a request, batch or poll, never once a record.
"""
