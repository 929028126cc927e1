"""The fake cluster's partitions: batches, and what producers have written of them.

Begin with `log.py`.
"""
