"""Writes: rows of a task -> records, and what a task reports to the driver.

Begin with `writer.py`; a task is `write_task.py`.
"""
