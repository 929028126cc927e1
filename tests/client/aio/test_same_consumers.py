"""The tests of Consumer, ShareConsumer and Admin over the asyncio classes."""

from __future__ import annotations

from sparkkafka.client.aio import AsyncAdmin, AsyncConsumer, AsyncShareConsumer
from tests.client.admin import test_admin
from tests.client.aio.exchange import add_tests, exchanging
from tests.client.consumer import test_consumer
from tests.client.share import test_share_consumer

add_tests(globals(), test_admin, set())
add_tests(
    globals(),
    test_consumer,
    {
        "test_two_threads_at_the_same_time_get_an_error",  # calls of tasks take turns
        "test_a_forked_child_gets_an_error_and_leaves_the_connections_alone",
        "test_nothing_is_sent_by_the_constructor_and_close_may_be_called_again",  # its repr
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
)
exchange = exchanging(
    {
        test_admin: ("Admin", AsyncAdmin),
        test_consumer: ("Consumer", AsyncConsumer),
        test_share_consumer: ("ShareConsumer", AsyncShareConsumer),
    }
)
