"""The Consumer, and all that fetches: many partitions at once, or one offset range for Spark.

Begin with `consumer.py`: `poll_loop.py` runs its poll, `fetcher.py` asks all leaders for records.
`range_fetcher.py` reads one range, `small_ranges_fetcher.py` several; all share `fetch_request.py`.
"""
