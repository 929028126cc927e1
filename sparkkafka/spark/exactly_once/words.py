"""What error codes of transactions mean to those who run a query with exactly-once."""

from __future__ import annotations

from collections.abc import Mapping

from sparkkafka.client.transactions.requests import EXPLANATIONS
from sparkkafka.errors import ErrorCode

_NO_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_TOO_LONG = ErrorCode.INVALID_TRANSACTION_TIMEOUT

OF_TRANSACTIONS: Mapping[int, str] = {
    **EXPLANATIONS,
    _NO_ID: EXPLANATIONS[_NO_ID]
    + " (a prefixed ACL on transactionalIdPrefix covers all ids of a query)",
    _TOO_LONG: EXPLANATIONS[_TOO_LONG]
    + ". Left out, it is the broker's maximum, or 15 minutes if this user may not see that "
    "(DESCRIBE_CONFIGS on the cluster)",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        "this user may not use the group in which decisions are kept: grant READ on it"
    ),
}

OF_DECISIONS: Mapping[int, str] = {
    **OF_TRANSACTIONS,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "decisions are kept beside offsets of the topics that are written: grant READ on the topic "
        "as well, WRITE alone is not enough for this"
    ),
}
