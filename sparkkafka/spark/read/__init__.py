"""Reads, of batches and of streams: plan offset ranges on the driver, read them in tasks.

Begin with `reader.py`; a task is `read_task.py`.
"""
