"""Values that Kafka's protocol gives a special meaning, most of them "none"."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

# Records and offsets
NO_OFFSET: Final = -1
NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1

# Attributes of a record batch and of a message of the formats before it
RECORD_BATCH_OVERHEAD: Final = 61  # bytes of the header
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08

# Producers (KIP-98)
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1

# Members of groups
NO_GENERATION: Final = -1
NO_MEMBER_ID: Final = ""

# Timestamps in ListOffsets that select an offset by a property instead of a time
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3  # KIP-734, Kafka 3.0
EARLIEST_LOCAL: Final = -4  # KIP-405
LATEST_TIERED: Final = -5  # KIP-1005
EARLIEST_PENDING_UPLOAD: Final = -6  # KIP-1023

# ListOffsets and Fetch
CONSUMER_REPLICA_ID: Final = -1
NO_SESSION_EPOCH: Final = -1  # KIP-227: a full fetch outside of any session
ISOLATION_LEVELS: Final = MappingProxyType({"read_uncommitted": 0, "read_committed": 1})
