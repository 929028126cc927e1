"""The verbs that move records: read, write, copy, bench, and kcat's letters for them.

Begin with `reading.py`, which gives a topic's records as Arrow batches from where to where one
wants; `formats.py` makes text of whole columns, `files.py` Parquet, Arrow and CSV. `input.py` makes
columns of lines and files. read, write, copy, bench and kcat are the verbs.
"""
