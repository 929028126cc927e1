"""The Consumer, and the reader of offset ranges for Spark's tasks: one Fetcher for both.

Begin with `consumer.py`: its `PollLoop` runs a poll, `consumer_coordinator.py` is its side of a
group, `auto_offset_reset.py` sets starting positions, `fetcher.py` requests records from all
leaders, `subscription_state.py` has positions and buffered records. `range_reader.py` reads ranges
of offsets with the same fetcher. max.poll.interval.ms is in `client/group/membership.py`.
"""
