"""The Admin for asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.aio.worker import AsyncClient, awaited


class AsyncAdmin(AsyncClient[Admin]):
    """`Admin` for asyncio: the same methods, awaited. They run one after another.

        async with AsyncAdmin({"bootstrap.servers": "broker:9092"}) as admin:
            results = await admin.create_topics([NewTopic("orders", partitions=6)])
            results.all()

    If a task is cancelled, a call that it has begun ends in the background and may still change
    the cluster.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config` has the settings of `Admin`, by Kafka's names. Raises OptionError."""
        super().__init__(Admin(config))

    async def close(self) -> None:
        """Close the connections, after the calls that tasks made before."""
        await self._end(self._client.close)

    create_topics = awaited(Admin.create_topics)
    create_topic = awaited(Admin.create_topic)
    delete_topics = awaited(Admin.delete_topics)
    delete_topic = awaited(Admin.delete_topic)
    create_partitions = awaited(Admin.create_partitions)
    describe_topics = awaited(Admin.describe_topics)
    describe_topic = awaited(Admin.describe_topic)
    list_topics = awaited(Admin.list_topics)
    list_config_resources = awaited(Admin.list_config_resources)
    describe_configs = awaited(Admin.describe_configs)
    incremental_alter_configs = awaited(Admin.incremental_alter_configs)
    delete_records = awaited(Admin.delete_records)
    list_offsets = awaited(Admin.list_offsets)
    list_groups = awaited(Admin.list_groups)
    list_consumer_groups = awaited(Admin.list_consumer_groups)
    describe_consumer_groups = awaited(Admin.describe_consumer_groups)
    describe_consumer_group = awaited(Admin.describe_consumer_group)
    delete_consumer_groups = awaited(Admin.delete_consumer_groups)
    list_consumer_group_offsets = awaited(Admin.list_consumer_group_offsets)
    alter_consumer_group_offsets = awaited(Admin.alter_consumer_group_offsets)
    delete_consumer_group_offsets = awaited(Admin.delete_consumer_group_offsets)
    remove_members_from_consumer_group = awaited(Admin.remove_members_from_consumer_group)
    list_share_groups = awaited(Admin.list_share_groups)
    describe_share_groups = awaited(Admin.describe_share_groups)
    describe_share_group = awaited(Admin.describe_share_group)
    delete_share_groups = awaited(Admin.delete_share_groups)
    list_share_group_offsets = awaited(Admin.list_share_group_offsets)
    alter_share_group_offsets = awaited(Admin.alter_share_group_offsets)
    delete_share_group_offsets = awaited(Admin.delete_share_group_offsets)
    list_transactions = awaited(Admin.list_transactions)
    describe_transactions = awaited(Admin.describe_transactions)
    describe_producers = awaited(Admin.describe_producers)
    abort_transaction = awaited(Admin.abort_transaction)
    fence_producers = awaited(Admin.fence_producers)
    describe_acls = awaited(Admin.describe_acls)
    create_acls = awaited(Admin.create_acls)
    delete_acls = awaited(Admin.delete_acls)
    describe_user_scram_credentials = awaited(Admin.describe_user_scram_credentials)
    alter_user_scram_credentials = awaited(Admin.alter_user_scram_credentials)
    create_delegation_token = awaited(Admin.create_delegation_token)
    renew_delegation_token = awaited(Admin.renew_delegation_token)
    expire_delegation_token = awaited(Admin.expire_delegation_token)
    describe_delegation_tokens = awaited(Admin.describe_delegation_tokens)
    describe_cluster = awaited(Admin.describe_cluster)
    describe_log_dirs = awaited(Admin.describe_log_dirs)
    describe_client_quotas = awaited(Admin.describe_client_quotas)
    alter_client_quotas = awaited(Admin.alter_client_quotas)
    alter_partition_reassignments = awaited(Admin.alter_partition_reassignments)
    list_partition_reassignments = awaited(Admin.list_partition_reassignments)
    elect_leaders = awaited(Admin.elect_leaders)
    describe_features = awaited(Admin.describe_features)
    update_features = awaited(Admin.update_features)
