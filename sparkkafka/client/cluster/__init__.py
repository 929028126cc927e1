"""The cluster as a client sees it: metadata, leaders, coordinators, and the driver of requests.

Begin with `cluster.py`: metadata, and the leader of a partition. `requests.py` is the loop that
sends a request about many items and repeats it, `lookups.py` finds the broker of each.
"""
