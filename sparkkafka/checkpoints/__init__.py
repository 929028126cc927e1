"""Checkpoints of streaming queries, read and repaired without Spark: `Checkpoint`, in `logs.py`.

Spark keeps the offsets of each planned micro-batch, and which batches are finished, in small text
files. They are the same for this connector and for the JVM connector. `storage` lists and writes
files, `logs` parses them, `comparison` compares batches and finds damage, `against_kafka` says what
is left to read, what is lost, and what an exactly-once sink has decided, `reset` moves a query to
other offsets.
"""
