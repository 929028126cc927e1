"""Whether anybody listens at bootstrap.servers, before a verb waits for its deadline.

The client retries a refused connection until the deadline, as Java's does: a service outlives a
broker that restarts. At a terminal a refused port is a typing error or a broker that was not
started, and half a minute without a word helps nobody.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import BootstrapServers, connect, where
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import KafkaConnectionError, some

log = logging.getLogger(__name__)

CONNECT_MS: Final = 1_000


def check_not_refused(options: ClientOptions) -> None:
    """Raise KafkaConnectionError if every entry of bootstrap.servers refuses connections.

    The first entry that does not refuse ends the check, after CONNECT_MS at most: what it is, the
    client finds out. If it does not connect either, a warning names those that refused.
    """
    deadline = Deadline(CONNECT_MS)
    refused: list[str] = []
    for host, port in BootstrapServers(options).addresses():
        try:
            connect(host, port, options, deadline).close()
        except KafkaConnectionError as error:
            if error.errno == errno.ECONNREFUSED:
                refused.append(where(host, port))
                continue
            if refused:
                log.warning("%s: connection refused; %s", some(refused), error)
        return
    raise KafkaConnectionError(
        f"connection refused by {some(refused)}: no broker listens there. Is the port of "
        "bootstrap.servers right, and has the broker been started?"
    )
