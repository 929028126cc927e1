"""What a user may do with a resource, as brokers tell it: a number whose bits are operations
(KIP-430; the bits are Java's AclOperation)."""

from __future__ import annotations

from sparkkafka.protocol.messages import NO_AUTHORIZED_OPERATIONS

_OPERATIONS = {
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
    15: "TWO_PHASE_COMMIT",
}


def authorized_operations(bits: int) -> frozenset[str] | None:
    """The names of the operations; None if the broker was not asked."""
    if bits == NO_AUTHORIZED_OPERATIONS:
        return None
    return frozenset(name for bit, name in _OPERATIONS.items() if bits >> bit & 1)
