"""Random joins, leaves, deaths, lost responses and moves of the coordinator, in both protocols.

After each step every partition has one owner; and at no time has one two, among those alive.
"""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from sparkkafka.errors import ErrorCode
from sparkkafka.testing.fake.faults import Delay, Drop
from tests.client.group.members import TestMember, is_settled, poll_until
from tests.support.properties import seeds

pytestmark = pytest.mark.slow

PARTITIONS = 12
STEPS = 12
APIS = ["FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat"]
FAULTS = [Drop.BEFORE, Drop.AFTER, Delay(30), ErrorCode.NOT_COORDINATOR]


@pytest.mark.parametrize("seed", seeds(1, 2))
@pytest.mark.parametrize("how", ["range", "sticky", "cooperative-sticky", "consumer"])
def test_each_partition_has_one_owner(fake_cluster, how, seed):
    rng = random.Random(f"{how} {seed}")
    fake = fake_cluster
    fake.create_topic("t", partitions=PARTITIONS)
    if how == "consumer":
        config = {"group_protocol": how}
    else:
        config = {"partition_assignment_strategy": how}
    alive: list[TestMember] = []

    def settled() -> bool:
        owned = [tp for row in alive for tp in row.member.assignment]
        assert len(owned) == len(set(owned)), "a partition has two owners"
        return is_settled(alive, PARTITIONS)

    with ExitStack() as stack:
        for _ in range(STEPS):
            if len(alive) < 2 or (len(alive) < 4 and rng.random() < 0.5):
                alive.append(stack.enter_context(TestMember(fake, **config)))
            else:
                goes = alive.pop(rng.randrange(len(alive)))
                member_id, dies = goes.member.metadata.member_id, rng.random() < 0.4
                goes.close(leave=not dies)
                if dies:
                    fake.remove_member("g", member_id)
            for _ in range(rng.randrange(3)):
                fake.fault(rng.choice(FAULTS), api=rng.choice(APIS), nth=rng.randrange(1, 4))
            if rng.random() < 0.3:
                fake.move_coordinator("g", rng.randrange(3))
            poll_until(settled, *alive)
