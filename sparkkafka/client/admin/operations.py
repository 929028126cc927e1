"""What a user may be allowed to do: the operations of ACLs, also as bits of an answer (KIP-430)."""

from __future__ import annotations

from typing import Final

from sparkkafka.protocol.messages import NO_AUTHORIZED_OPERATIONS

OPERATIONS_VERSION: Final = 8  # of Metadata

# Java's AclOperation, without ANY, which stands in filters alone.
OPERATIONS: Final = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
    "CREATE_TOKENS": 13,
    "DESCRIBE_TOKENS": 14,
    "TWO_PHASE_COMMIT": 15,
}


def authorized_operations(bits: int) -> frozenset[str] | None:
    """What a user may do with a resource, of a number whose bits are operations; None if the broker
    was not asked."""
    if bits == NO_AUTHORIZED_OPERATIONS:
        return None
    return frozenset(name for name, bit in OPERATIONS.items() if bits >> bit & 1)
