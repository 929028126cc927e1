"""The cluster as a client sees it: metadata, leaders, coordinators, and the driver of requests.

Begin with `cluster.py`: it connects, and finds topics and leaders. `request_driver.py` sends a
request about many items to the right brokers and retries it.
"""
