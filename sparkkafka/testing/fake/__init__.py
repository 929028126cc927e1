"""A cluster in this process that can be told to fail: it proves faults, not bytes.

Begin with `cluster.py`; `handlers.py` has the APIs, `faults.py` what can go wrong.
"""
