"""Share groups (KIP-932): consumers that read the same partitions together and acknowledge each
record. Begin with `share_consumer.py`; `share_fetcher.py` sends requests to the leaders,
`share_membership.py` to the group's coordinator, `acknowledgements.py` keeps what is acknowledged.
"""
