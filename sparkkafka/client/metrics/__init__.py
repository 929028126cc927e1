"""Metrics of the clients under Kafka's names, for `Consumer.metrics()`, `Producer.metrics()` and
`Admin.metrics()`.

`sampled` has one series of values, `network` the metrics of connections, `fetching` and `sending`
the others. They are updated once a request, batch or poll, never once a record.
"""
