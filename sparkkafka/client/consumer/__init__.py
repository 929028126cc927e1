"""The Consumer, and all that fetches: many partitions at once, or one offset range for Spark.

Begin with `consumer.py`; a range is read by `range_fetcher.py`.
"""
