"""The tests of the Producer over the AsyncProducer."""

from __future__ import annotations

from sparkkafka.client.aio import AsyncProducer
from tests.client.aio.exchange import add_tests, exchanging
from tests.client.producer import test_producer, test_transactional_producer

add_tests(
    globals(),
    test_producer,
    {
        # about callbacks, handles and threads, which an AsyncProducer does not have
        "test_callbacks_come_once_for_records_written_and_failed",
        "test_flush_and_close_end_after_the_callbacks",
        "test_a_callback_that_waits_for_its_own_thread_gets_an_error",
        "test_the_repr_of_a_delivery_has_its_outcome",
        "test_many_threads",
        "test_close_delivers_and_then_refuses",
        "test_one_lookup_of_a_topic_takes_no_longer_than_max_block_ms",
        "test_a_producer_that_is_collected_warns_of_what_is_lost_only",
        "test_the_io_thread_may_collect_the_producer_while_it_has_the_lock",
        "test_a_forked_child_gets_an_error",
        "test_ctrl_c_in_send_spoils_no_other_record",
        "test_the_end_of_the_interpreter_delivers",
        "test_close_ends_in_its_time_whatever_the_thread_waits_for",
        "test_pickling_is_refused_with_a_message",
        "test_settings_are_a_mapping",
        # send waits: see test_async_producer
        "test_a_full_buffer_blocks_until_memory_is_free",
        "test_a_buffer_that_stays_full_is_an_error_after_max_block_ms",
        # send_table returns no handle
        "test_a_table",
        "test_a_table_of_any_library_that_exports_arrow",
        "test_columns_of_nulls_are_as_none",
        "test_a_large_table_goes_in_pieces",
        "test_a_table_with_a_wrong_partition_and_a_missing_topic",
        "test_records_that_may_go_anywhere_avoid_partitions_without_a_leader",
        # long, and the same code
        "test_no_brokers_and_then_there_are",
        "test_the_last_lookup_of_a_topic_ends_with_max_block_ms",
        "test_leaving_with_an_exception_does_not_wait_and_says_what_is_lost",
    },
    short={
        "test_a_record_is_delivered_as_it_was_sent",
        "test_lingering_records_go_out_alone",
        "test_flush_ends_the_lingering",
        "test_bad_arguments_are_errors_at_once",
        "test_a_record_too_large_is_an_error_at_once_and_others_go_on",
        "test_a_missing_topic_and_a_missing_partition_fail_their_records_only",
        "test_a_refused_batch_fails_its_records_and_the_next_goes_on",
        "test_callable_partitioner",
        "test_what_nobody_asked_about_is_raised_at_the_end",
        "test_tables_that_are_wrong",
    },
)
add_tests(
    globals(),
    test_transactional_producer,
    {
        "test_a_commit_in_a_callback_can_still_be_aborted",
        # it sends faster than it is refused
        "test_a_fenced_producer_cannot_take_the_id_back_by_an_abort",
    },
    short={
        "test_what_is_committed_is_seen_and_what_is_aborted_is_not",
        "test_the_order_of_calls",
        "test_a_failed_record_makes_a_commit_an_error_and_an_abort_mends_it",
        "test_the_later_producer_fences_the_earlier",
        "test_offsets_of_a_group",
        "test_close_and_leaving_with_an_error_abort",
    },
)
exchange = exchanging(
    {
        test_producer: ("Producer", AsyncProducer),
        test_transactional_producer: ("Producer", AsyncProducer),
    }
)
