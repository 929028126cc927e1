"""The Consumer, and all that fetches: many partitions at once, or one offset range for Spark.

Begin with `consumer.py`: `poll_loop.py` runs its poll, `fetcher.py` asks all leaders for records.
`range_reader.py` reads the ranges of offsets of Spark's tasks with the same fetcher.
"""
