"""An Admin whose calls share one deadline, that of the verb."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.cluster.metadata import no_topic
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connecting import BootstrapServers, connect, where
from sparkkafka.config.client_settings import parse_admin_settings
from sparkkafka.config.options import ClientOptions
from sparkkafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicError,
    some,
)

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


class BoundedAdmin(Admin):
    """See `Admin`. A call without time left raises KafkaTimeoutError and sends nothing; the first
    one raises KafkaConnectionError if all servers refuse connections."""

    def __init__(self, config: Mapping[str, Any], deadline: Deadline) -> None:
        super().__init__(config)
        self.deadline = deadline
        self._options = parse_admin_settings(config)
        self._is_checked = False

    def begin_again(self) -> None:
        """Give it all the time once more: a person has taken some to answer."""
        self.deadline = Deadline(self.deadline.total_ms)

    def asking(self) -> AbstractContextManager[tuple[Cluster, Deadline]]:
        """For requests that `Admin` has no method for: the cluster, and until when."""
        return self._call(None)

    def with_nearest_topics(self, errors: Mapping[str, KafkaError]) -> dict[str, KafkaError]:
        """The errors by topic; those of missing topics name the nearest one as well."""
        missing = [name for name, error in errors.items() if isinstance(error, UnknownTopicError)]
        if not missing:
            return dict(errors)
        with self.asking() as (cluster, deadline):
            nearest = cluster.nearest_topics(missing, deadline)
        return {**errors, **{name: no_topic([name], nearest=nearest) for name in missing}}

    @contextmanager
    def _call(self, timeout_s: float | None) -> Iterator[tuple[Cluster, Deadline]]:
        if self.deadline.expired:
            raise KafkaTimeoutError(
                f"not done after {self.deadline.text}: give --timeout more seconds"
            )
        if not self._is_checked:
            check_not_refused(self._options)
            self._is_checked = True
        remaining_s = self.deadline.remaining_s()
        with super()._call(remaining_s if timeout_s is None else min(timeout_s, remaining_s)) as (
            cluster,
            deadline,
        ):
            yield cluster, deadline
