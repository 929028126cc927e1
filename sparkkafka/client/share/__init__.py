"""Share groups (KIP-932): consumers that read the same partitions together and acknowledge each
record. Begin with `share_consumer.py`; `share_fetcher.py` sends requests to the leaders,
`acknowledgements.py` keeps what is acknowledged. The membership is in
`group/consumer_group_membership.py`.
"""
