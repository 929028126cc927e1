"""One member of a consumer group: `make_member`."""

from __future__ import annotations

from sparkkafka.client.broker_assigned_member import BrokerAssignedMember
from sparkkafka.client.group_metadata import GroupMember, RebalanceHooks
from sparkkafka.client_options import ConsumerOptions


def make_member(options: ConsumerOptions, hooks: RebalanceHooks) -> GroupMember:
    """The membership that `options.group_protocol` asks for; nothing is on the network yet."""
    if options.group_protocol == "consumer":
        return BrokerAssignedMember(options, hooks)
    raise NotImplementedError(f"group.protocol={options.group_protocol}")
