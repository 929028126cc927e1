"""The data source for PySpark: planning on the driver, reading and writing in tasks.

Begin with `datasource.py`, which Spark calls; `read`, `stream` and `write` have what it hands out.
"""
