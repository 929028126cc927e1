"""The Consumer, and the reader of offset ranges for Spark's tasks: one Fetcher for both.

Begin with `consumer.py`: its `PollLoop` runs a poll, its `AutoOffsetReset` sets starting positions
(auto.offset.reset). `consumer_coordinator.py` is the consumer's side of a group, `fetcher.py`
requests records from all leaders, `subscription_state.py` has positions and buffered records.
`range_reader.py` reads ranges of offsets with the same fetcher. max.poll.interval.ms is in
`client/group/membership.py`.
"""
