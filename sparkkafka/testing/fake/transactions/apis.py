"""How the fake broker answers as a transaction coordinator, verifies writes, and takes the offsets
of a group as part of a transaction. Clients are those of transactions V1 or V2.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.constants import NO_GENERATION, NO_PRODUCER_ID
from sparkkafka.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from sparkkafka.testing.fake.call import Call, reported_in
from sparkkafka.testing.fake.groups.apis import group_error, is_too_large
from sparkkafka.testing.fake.groups.state import OFFSETS_TOPIC, CommittedOffset, offsets_partition
from sparkkafka.testing.fake.log.log import PartitionLog
from sparkkafka.testing.fake.log.producers import NO_EPOCH, Refused, now_ms
from sparkkafka.testing.fake.log.records import BatchHeader
from sparkkafka.testing.fake.transactions.transactions import (
    OTHER_STATES,
    FakeTransaction,
    TransactionState,
)

# Before these versions clients did not know PRODUCER_FENCED, and get INVALID_PRODUCER_EPOCH.
INIT_VERSION_WITH_FENCED = 4
TXN_VERSION_WITH_FENCED = 2
# KIP-890: from this version on a writer knows TRANSACTION_ABORTABLE.
PRODUCE_VERSION_WITH_ABORTABLE = 11
# Transactions V2: Produce adds its partition to the transaction, EndTxn returns a new epoch.
PRODUCE_VERSION_V2, END_VERSION_V2 = 12, 5

# The errors of Produce by those of the verification.
_UNVERIFIED: dict[int, ErrorCode] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}


def init_producer_id(call: Call) -> InitProducerIdResponse:
    """Answer InitProducerId, for an idempotent or a transactional producer."""
    message: InitProducerIdRequest = call.message
    response = InitProducerIdResponse(producer_epoch=NO_EPOCH)
    with reported_in(response):
        call.check_fault()
        try:
            producer_id, epoch = _init_producer_id(call, message)
        except Refused as error:
            code = _for_version(call, error.code, INIT_VERSION_WITH_FENCED)
            raise Refused(code, error.message) from error
        call.check_fault(applied=True)
        response.producer_id, response.producer_epoch = producer_id, epoch
    call.changed.notify_all()
    return response


def _init_producer_id(call: Call, message: InitProducerIdRequest) -> tuple[int, int]:
    """Return a producer id and epoch. Raises Refused."""
    expected = (message.producer_id, message.producer_epoch)
    if expected != (NO_PRODUCER_ID, NO_EPOCH) and (
        expected[0] == NO_PRODUCER_ID or expected[1] == NO_EPOCH
    ):
        raise Refused(ErrorCode.INVALID_REQUEST, "producer id without epoch, or epoch without id")
    if message.transactional_id is None:
        # A broker gives a new id even if one was named (KIP-360).
        return call.state.new_producer_id(), 0
    _check_id(message.transactional_id)
    transactions = call.state.transactions
    if not 0 < message.transaction_timeout_ms <= transactions.max_timeout_ms:
        raise Refused(
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            f"transaction.max.timeout.ms is {transactions.max_timeout_ms}",
        )
    _check_coordinator(call, message.transactional_id)
    found = transactions.init(
        message.transactional_id,
        message.transaction_timeout_ms,
        None if expected == (NO_PRODUCER_ID, NO_EPOCH) else expected,
    )
    return found.producer_id, found.producer_epoch


def add_partitions_to_txn(call: Call) -> AddPartitionsToTxnResponse:
    """Add all partitions or none. A fault rule for one of them gives the others
    OPERATION_NOT_ATTEMPTED."""
    message: AddPartitionsToTxnRequest = call.message
    requested = [
        (topic.name, number) for topic in message.v3_and_below_topics for number in topic.partitions
    ]
    codes = dict.fromkeys(requested, 0)
    injected = {
        row: injected.code for row in requested if (injected := call.error_of(*row)) is not None
    }
    if not injected or (call.injected is not None and call.injected.applied):
        codes = _add_partitions(call, message, requested)
    if injected:
        applied = call.injected is not None and call.injected.applied
        other = 0 if applied else ErrorCode.OPERATION_NOT_ATTEMPTED
        codes = {row: injected.get(row, codes[row] or other) for row in requested}
    call.changed.notify_all()
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=codes[topic.name, number]
                    )
                    for number in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


def _add_partitions(
    call: Call, message: AddPartitionsToTxnRequest, requested: list[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    missing = {row for row in requested if not call.state.has_partition(*row)}
    if missing:
        return {
            row: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if row in missing
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for row in requested
        }
    tid = message.v3_and_below_transactional_id
    pid, epoch = message.v3_and_below_producer_id, message.v3_and_below_producer_epoch
    code = _change_transaction(
        call, tid, lambda: call.state.transactions.add_partitions(tid, pid, epoch, requested)
    )
    return dict.fromkeys(requested, code)


def _change_transaction(call: Call, transactional_id: str, change: Callable[[], object]) -> int:
    """Change a transaction if this broker is its coordinator. Returns the error code, 0 if done."""
    try:
        _check_id(transactional_id)
        _check_coordinator(call, transactional_id)
        change()
    except Refused as error:
        return _for_version(call, error.code, TXN_VERSION_WITH_FENCED)
    return 0


def add_offsets_to_txn(call: Call) -> AddOffsetsToTxnResponse:
    """Add the group's partition of __consumer_offsets to the transaction."""
    message: AddOffsetsToTxnRequest = call.message
    injected = call.error_of()
    code = 0
    if injected is None or injected.applied:
        tid, pid, epoch = message.transactional_id, message.producer_id, message.producer_epoch
        partition = (OFFSETS_TOPIC, offsets_partition(message.group_id))
        code = _change_transaction(
            call, tid, lambda: call.state.transactions.add_partitions(tid, pid, epoch, [partition])
        )
    call.changed.notify_all()
    return AddOffsetsToTxnResponse(error_code=code if injected is None else injected.code)


def end_txn(call: Call) -> EndTxnResponse:
    """Answer EndTxn."""
    message: EndTxnRequest = call.message
    injected = call.error_of()
    response = EndTxnResponse()
    if injected is None or injected.applied:
        tid, pid, epoch = message.transactional_id, message.producer_id, message.producer_epoch
        commit, transactions = message.committed, call.state.transactions

        def end() -> None:
            if call.version < END_VERSION_V2:
                transactions.end(tid, pid, epoch, commit=commit)
            else:
                response.producer_id, response.producer_epoch = transactions.end_with_new_epoch(
                    tid, pid, epoch, commit=commit
                )

        response.error_code = _change_transaction(call, tid, end)
    call.changed.notify_all()
    return response if injected is None else EndTxnResponse(error_code=injected.code)


def describe_transactions(call: Call) -> DescribeTransactionsResponse:
    """Answer DescribeTransactions."""
    message: DescribeTransactionsRequest = call.message
    return DescribeTransactionsResponse(
        transaction_states=[_describe_transaction(call, tid) for tid in message.transactional_ids]
    )


def _describe_transaction(call: Call, transactional_id: str) -> DescribedTransactionState:
    """Return the state of one transactional id, or the error code."""
    injected = call.error_of()
    code: int = 0 if injected is None else injected.code
    if not code:
        try:
            _check_id(transactional_id)
            _check_coordinator(call, transactional_id)
        except Refused as error:
            code = error.code
    found = call.state.transactions.by_id.get(transactional_id)
    if found is None or code:
        return DescribedTransactionState(
            error_code=code or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            transactional_id=transactional_id,
        )
    topics: dict[str, list[int]] = {}
    for name, number in sorted(found.partitions):
        topics.setdefault(name, []).append(number)
    return DescribedTransactionState(
        transactional_id=transactional_id,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=[TopicData(topic=name, partitions=rows) for name, rows in topics.items()],
    )


def list_transactions(call: Call) -> ListTransactionsResponse:
    """Answer ListTransactions: those that match all filters of the request."""
    message: ListTransactionsRequest = call.message
    injected = call.error_of()
    if injected is not None:
        return ListTransactionsResponse(error_code=injected.code)
    try:
        pattern = re.compile(message.transactional_id_pattern or ".*", re.DOTALL)
    except re.error:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    transactions = call.state.transactions
    transactions.write_waiting_markers()
    found = [
        row
        for row in transactions.by_id.values()
        if call.state.coordinator(row.transactional_id) == call.broker_id
        and pattern.fullmatch(row.transactional_id)
        and _matches_filters(row, message)
    ]
    return ListTransactionsResponse(
        unknown_state_filters=[
            name for name in message.state_filters if name not in {*TransactionState, *OTHER_STATES}
        ],
        transaction_states=[
            ListedTransactionState(
                transactional_id=row.transactional_id,
                producer_id=row.producer_id,
                transaction_state=row.state,
            )
            for row in found
        ],
    )


def _matches_filters(row: FakeTransaction, message: ListTransactionsRequest) -> bool:
    """Return whether a transaction matches the state, producer id and duration filters."""
    return (
        (not message.state_filters or row.state in message.state_filters)
        and (not message.producer_id_filters or row.producer_id in message.producer_id_filters)
        # A transaction without partitions has the start -1, so it lasts very long, as on a broker.
        and (message.duration_filter < 0 or now_ms() - row.start_ms > message.duration_filter)
    )


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise Refused(ErrorCode.INVALID_REQUEST, "an empty transactional id")


def _check_coordinator(call: Call, transactional_id: str) -> None:
    call.state.transactions.write_waiting_markers()
    if call.state.coordinator(transactional_id) != call.broker_id:
        raise Refused(ErrorCode.NOT_COORDINATOR, f"not for {transactional_id!r}")


def _for_version(call: Call, code: int, since: int) -> int:
    """Return the error code; requests older than version `since` do not know PRODUCER_FENCED."""
    if code == ErrorCode.PRODUCER_FENCED and call.version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def verify_write(
    call: Call, log: PartitionLog, partition: tuple[str, int], header: BatchHeader
) -> None:
    """Verify with the coordinator that a batch is part of an ongoing transaction (KIP-890, 3.6).

    Does nothing if the log has an open transaction of this producer, which was verified when it
    began. Raises Refused with the error of Produce.
    """
    state = call.state
    if not state.transactions.verifies or log.has_open_transaction(
        header.producer_id, header.producer_epoch
    ):
        return
    log.begin_verification(header)
    transactional_id = call.message.transactional_id
    try:
        if state.coordinator(transactional_id) is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no coordinator is up")
        owner = (transactional_id, header.producer_id, header.producer_epoch)
        if call.version >= PRODUCE_VERSION_V2:
            state.transactions.write_waiting_markers()
            state.transactions.add_partitions(*owner, [partition])
        else:
            state.transactions.verify(*owner, partition)
    except Refused as error:
        code = _UNVERIFIED.get(error.code, error.code)
        if call.version >= PRODUCE_VERSION_V2 and error.code == ErrorCode.CONCURRENT_TRANSACTIONS:
            code = error.code
        if (
            code == ErrorCode.TRANSACTION_ABORTABLE
            and call.version < PRODUCE_VERSION_WITH_ABORTABLE
        ):
            code = ErrorCode.INVALID_TXN_STATE
        raise Refused(code, error.message) from error


# Transactions V2: TxnOffsetCommit itself adds the group to the transaction.
VERSION_V2 = 5

# The errors of TxnOffsetCommit by those of the verification.
_UNVERIFIED_OFFSETS: dict[int, ErrorCode] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    # KIP-890: only newer versions of the request (from 4 on) know it.
    ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE,
}


def txn_offset_commit(call: Call) -> TxnOffsetCommitResponse:
    """Answer TxnOffsetCommit."""
    message: TxnOffsetCommitRequest = call.message
    codes: dict[tuple[str, int], int] = {}
    offsets: dict[tuple[str, int], CommittedOffset] = {}
    state = call.state
    for topic in message.topics:
        for row in topic.partitions:
            key = (topic.name, row.partition_index)
            codes[key] = 0
            if not state.has_partition(*key):
                codes[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(row.committed_metadata or "") > state.groups.max_metadata_bytes:
                codes[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            injected = call.error_of(*key)
            if not codes[key] and (injected is None or injected.applied):
                offsets[key] = CommittedOffset(
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata or "",
                    state.groups.next_serial(),
                )
    try:
        _check_offsets(call, message)
        state.groups.add_pending(
            message.group_id, message.producer_id, message.producer_epoch, offsets
        )
    except Refused as error:
        # A topic that does not exist is an error before the group's coordinator is checked.
        for key, code in codes.items():
            if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                codes[key] = error.code
    for key in codes:
        injected = call.error_of(*key)
        if injected is not None:
            codes[key] = injected.code
    call.changed.notify_all()
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=row.partition_index,
                        error_code=codes[topic.name, row.partition_index],
                    )
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def _check_offsets(call: Call, message: TxnOffsetCommitRequest) -> None:
    """Raise Refused for an error that all partitions of a TxnOffsetCommit get."""
    code = group_error(call, message.group_id)
    if code:
        raise Refused(code, f"group {message.group_id!r}")
    _verify_offsets(call, message)
    if is_too_large(message):
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "too large")  # as brokers from 4.0 on
    # Unlike OffsetCommit, TxnOffsetCommit may come from outside of a group with members.
    if message.generation_id_or_member_epoch == NO_GENERATION and not message.member_id:
        return
    group = call.state.groups.group(message.group_id)
    if group.membership.members or group.consumer_protocol.members:
        try:
            group.check_commit(
                message.member_id, message.group_instance_id, message.generation_id_or_member_epoch
            )
        except Refused as error:
            if error.code == ErrorCode.STALE_MEMBER_EPOCH:
                raise Refused(ErrorCode.ILLEGAL_GENERATION, error.message) from error
            raise
        return
    if message.generation_id_or_member_epoch == NO_GENERATION and not group.has_members:
        return
    raise Refused(
        ErrorCode.UNKNOWN_MEMBER_ID if group.exists else ErrorCode.ILLEGAL_GENERATION,
        f"there is no member {message.member_id!r}",
    )


def _verify_offsets(call: Call, message: TxnOffsetCommitRequest) -> None:
    """Verify with the coordinator that the group is part of the transaction (KIP-890, 3.6). Raises
    Refused."""
    state = call.state
    number = offsets_partition(message.group_id)
    if not state.transactions.verifies or state.groups.has_pending(
        number, message.producer_id, message.producer_epoch
    ):
        return
    try:
        if not message.transactional_id:
            raise Refused(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        if state.coordinator(message.transactional_id) is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no coordinator is up")
        owner = (message.transactional_id, message.producer_id, message.producer_epoch)
        if call.version >= VERSION_V2:
            state.transactions.write_waiting_markers()
            state.transactions.add_partitions(*owner, [(OFFSETS_TOPIC, number)])
        else:
            state.transactions.verify(*owner, (OFFSETS_TOPIC, number))
    except Refused as error:
        raise Refused(_UNVERIFIED_OFFSETS.get(error.code, error.code), error.message) from error
