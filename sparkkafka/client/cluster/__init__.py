"""The cluster as a client sees it: metadata, leaders, coordinators, and the driver of requests.

Begin with `cluster.py`: metadata, and the leader of a partition. `request_driver.py` sends
requests about many items and retries them; `lookups.py` finds the broker of each item.
"""
