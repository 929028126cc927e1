"""How the fake broker answers InitProducerId, AddPartitionsToTxn and EndTxn, and verifies writes.

Clients are those of transactions V1. The offsets of groups do not take part in transactions here.
"""

from __future__ import annotations

from sparkkafka.errors import ErrorCode
from sparkkafka.protocol.messages import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from sparkkafka.testing.fake_call import Call
from sparkkafka.testing.fake_log import PartitionLog
from sparkkafka.testing.fake_producers import NO_EPOCH, Refused
from sparkkafka.testing.fake_records import BatchHeader
from sparkkafka.testing.fake_transactions import NO_PRODUCER_ID

# Before these versions clients did not know PRODUCER_FENCED, and get INVALID_PRODUCER_EPOCH.
INIT_VERSION_WITH_FENCED = 4
TXN_VERSION_WITH_FENCED = 2
# KIP-890: from this version on a writer knows TRANSACTION_ABORTABLE.
PRODUCE_VERSION_WITH_ABORTABLE = 11

_UNVERIFIED: dict[int, ErrorCode] = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.CONCURRENT_TRANSACTIONS: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
}


def init_producer_id(call: Call) -> InitProducerIdResponse:
    message: InitProducerIdRequest = call.message
    answer = call.top_level or call.injected()
    code, response = 0, InitProducerIdResponse(producer_epoch=NO_EPOCH)
    if answer is None or answer.applied:
        try:
            producer_id, epoch = _init(call, message)
            response = InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
        except Refused as error:
            code = _for_version(call, error.code, INIT_VERSION_WITH_FENCED)
    if answer is not None:
        code, response = answer.code, InitProducerIdResponse(producer_epoch=NO_EPOCH)
    response.error_code = code
    call.changed.notify_all()
    return response


def _init(call: Call, message: InitProducerIdRequest) -> tuple[int, int]:
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
    """All partitions or none; a fault rule for one of them stops the others (55)."""
    message: AddPartitionsToTxnRequest = call.message
    wanted = [
        (topic.name, number) for topic in message.v3_and_below_topics for number in topic.partitions
    ]
    codes = dict.fromkeys(wanted, 0)
    injected = {row: answer.code for row in wanted if (answer := call.injected(*row)) is not None}
    if not injected or (call.answer is not None and call.answer.applied):
        codes = _add(call, message, wanted)
    if injected:
        applied = call.answer is not None and call.answer.applied
        other = 0 if applied else ErrorCode.OPERATION_NOT_ATTEMPTED
        codes = {row: injected.get(row, codes[row] or other) for row in wanted}
    call.changed.notify_all()
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=codes[topic.name, number],
                    )
                    for number in topic.partitions
                ],
            )
            for topic in message.v3_and_below_topics
        ]
    )


def _add(
    call: Call, message: AddPartitionsToTxnRequest, wanted: list[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    missing = {row for row in wanted if not call.state.has_partition(*row)}
    if missing:
        return {
            row: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if row in missing
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for row in wanted
        }
    transactional_id = message.v3_and_below_transactional_id
    try:
        _check_id(transactional_id)
        _check_coordinator(call, transactional_id)
        call.state.transactions.add_partitions(
            transactional_id,
            message.v3_and_below_producer_id,
            message.v3_and_below_producer_epoch,
            wanted,
        )
    except Refused as error:
        return dict.fromkeys(wanted, _for_version(call, error.code, TXN_VERSION_WITH_FENCED))
    return dict.fromkeys(wanted, 0)


def end_txn(call: Call) -> EndTxnResponse:
    message: EndTxnRequest = call.message
    answer = call.top_level or call.injected()
    code = 0
    if answer is None or answer.applied:
        try:
            _check_id(message.transactional_id)
            _check_coordinator(call, message.transactional_id)
            call.state.transactions.end(
                message.transactional_id,
                message.producer_id,
                message.producer_epoch,
                commit=message.committed,
            )
        except Refused as error:
            code = _for_version(call, error.code, TXN_VERSION_WITH_FENCED)
    call.changed.notify_all()
    return EndTxnResponse(error_code=code if answer is None else answer.code)


def _check_id(transactional_id: str) -> None:
    if not transactional_id:
        raise Refused(ErrorCode.INVALID_REQUEST, "an empty transactional id")


def _check_coordinator(call: Call, transactional_id: str) -> None:
    call.state.transactions.write_waiting_markers()
    if call.state.coordinator(transactional_id) != call.broker_id:
        raise Refused(ErrorCode.NOT_COORDINATOR, f"not for {transactional_id!r}")


def _for_version(call: Call, code: ErrorCode, since: int) -> int:
    if code == ErrorCode.PRODUCER_FENCED and call.version < since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def verify_write(
    call: Call, log: PartitionLog, partition: tuple[str, int], header: BatchHeader
) -> None:
    """Transaction verification (KIP-890, 3.6): may this transactional batch be written?

    A leader asks the coordinator only if the log has no open transaction of this producer: what is
    in an open one was verified when that began. Raises Refused with what Produce answers.
    """
    state = call.state
    if not state.transactions.verifies or log.has_open_transaction(header.producer_id):
        return
    log.begin_verification(header)
    transactional_id = call.message.transactional_id
    try:
        if state.coordinator(transactional_id) is None:
            raise Refused(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no coordinator is up")
        state.transactions.verify(
            transactional_id, header.producer_id, header.producer_epoch, partition
        )
    except Refused as error:
        code = _UNVERIFIED.get(error.code, error.code)
        if (
            code == ErrorCode.TRANSACTION_ABORTABLE
            and call.version < PRODUCE_VERSION_WITH_ABORTABLE
        ):
            code = ErrorCode.INVALID_TXN_STATE
        raise Refused(code, error.message) from error
