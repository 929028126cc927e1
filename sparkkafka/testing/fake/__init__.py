"""A cluster in this process with injected faults. It proves faults, not bytes.

Begin with `cluster.py`; `handlers.py` has the APIs, `faults.py` what can go wrong.
"""
