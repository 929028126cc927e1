"""Sends record batches to partition leaders: queues, requests in flight, retries, errors.

Begin with `sender.py`; Spark's tasks write tables through `arrow_producer.py`.
"""
