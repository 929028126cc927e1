"""Writes: the writers of batch jobs and streams, their tasks, and what tasks report to the driver.

Begin with `writer.py`; a task is `write_task.py`.
"""
