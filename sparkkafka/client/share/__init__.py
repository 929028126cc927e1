"""Share groups (KIP-932): consumers that read the same partitions together, and say of each record
whether it is done with. Begin with `share_consumer`; `share_fetcher` talks to the leaders,
`share_member` to the group's coordinator, `deliveries` keeps what is to be acknowledged."""
