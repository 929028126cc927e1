"""Batches to leaders: queues of partitions, requests in flight, retries, errors.

Begin with `sender.py`; Spark writes tables by `arrow_producer.py`.
"""
