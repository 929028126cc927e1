"""The tests of Consumer, ShareConsumer and Admin over the asyncio classes."""

from __future__ import annotations

from sparkkafka.client.aio import AsyncAdmin, AsyncConsumer, AsyncShareConsumer
from tests.client.admin import test_admin
from tests.client.aio.exchange import add_tests, exchanging
from tests.client.consumer import test_consumer
from tests.client.share import test_share_consumer

add_tests(
    globals(),
    test_admin,
    set(),
    short={
        "test_results_keep_each_item_apart",
        "test_a_listing_is_a_sequence_and_says_which_brokers_are_missing",
        "test_lost_responses_are_not_taken_for_failures",
        "test_bad_arguments_are_errors_before_anything_is_sent",
        "test_offsets_of_a_group_are_set_and_listed_where_it_is_coordinated",
        "test_a_closed_admin_says_so",
    },
)
add_tests(
    globals(),
    test_consumer,
    {
        "test_two_threads_at_the_same_time_get_an_error",  # calls of tasks take turns
        "test_a_forked_child_gets_an_error_and_leaves_the_connections_alone",
        "test_nothing_is_sent_by_the_constructor_and_close_may_be_called_again",  # its repr
    },
    short={
        "test_poll_gives_all_in_order_up_to_max_poll_records",
        "test_poll_arrow_takes_all_or_max_records_and_mixes_with_poll",
        "test_a_seek_throws_away_what_is_buffered_and_what_is_in_flight",
        "test_seek_to_both_ends",
        "test_out_of_range_is_an_error_under_none",
        "test_assign_keeps_positions_of_what_stays",
        "test_paused_partitions_keep_what_is_buffered",
        "test_offsets_and_topics",
        "test_commit_and_begin_there",
        "test_automatic_commits_come_at_a_later_poll_and_in_close",
        "test_leaving_by_an_exception_commits_nothing",
        "test_what_needs_a_group_says_so",
        "test_close_closes_all_connections",
        "test_timeouts",
        "test_poll_with_0_gets_there",
        "test_wrong_arguments_are_errors_with_a_message",
    },
)
add_tests(
    globals(),
    test_share_consumer,
    {
        # about one thread, and its interrupts
        "test_one_metadata_request_and_no_wakeups_without_a_reason",
        "test_ctrl_c_inside_poll_gives_the_records_back",
        "test_ctrl_c_at_each_line_loses_no_record",
        "test_it_is_used_by_one_thread_and_not_after_close",
        "test_records_of_a_session_that_is_over_cannot_be_acknowledged",  # reads its fetcher
    },
    short={
        "test_records_are_accepted_by_the_next_poll",
        "test_commit_waits_for_the_response",
        "test_close_gives_back_what_is_not_acknowledged",
        "test_explicit",
        "test_acknowledge_says_what_it_wants",
        "test_a_broken_connection_is_reported",
        "test_damage_is_an_error_once_and_the_rest_is_read",
        "test_wakeup_from_another_thread",
        "test_unsubscribe_and_again",
        "test_settings_that_a_share_consumer_does_not_have",
    },
)
exchange = exchanging(
    {
        test_admin: ("Admin", AsyncAdmin),
        test_consumer: ("Consumer", AsyncConsumer),
        test_share_consumer: ("ShareConsumer", AsyncShareConsumer),
    }
)
