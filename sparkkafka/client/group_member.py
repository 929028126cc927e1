"""One member of a consumer group whose members assign the partitions (the classic protocol)."""

from __future__ import annotations

from sparkkafka.client.group_metadata import GroupMember, RebalanceHooks
from sparkkafka.client_options import ConsumerOptions


def make_member(options: ConsumerOptions, hooks: RebalanceHooks) -> GroupMember:
    """The membership that `options.group_protocol` asks for; nothing is on the network yet."""
    raise NotImplementedError(f"group.protocol={options.group_protocol}")
