"""The cluster as a client sees it: metadata, leaders, coordinators, and the driver of requests.

Begin with `cluster.py`; `requests.py` sends a request about many items, `lookups.py` says where
each goes.
"""
