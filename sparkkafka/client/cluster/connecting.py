"""A connection that is made in the background, for those who must not wait for one broker.

Connecting takes a name look-up, a TCP and perhaps a TLS handshake, and several requests; a broker
that is gone without a trace lets all that wait for seconds.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from sparkkafka.client.cluster.cluster import Cluster
from sparkkafka.client.deadline import Deadline
from sparkkafka.client.net.connection import Connection
from sparkkafka.client.values import Broker
from sparkkafka.errors import KafkaError


class Connecting:
    """The attempt to connect to `broker`; calls `done`, from another thread, when it has ended.

    Of `cluster` it uses `open` alone: no more attempts for a moment after a refused password.
    """

    def __init__(self, broker: Broker, cluster: Cluster, done: Callable[[], None]) -> None:
        self._broker = broker
        self._cluster = cluster
        self._done = done
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._thread = threading.Thread(
            target=self._run, name=f"connecting to {broker}", daemon=True
        )
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return self._connection is not None or self._error is not None

    def result(self) -> Connection:
        """The connection, once `has_ended`; raises what went wrong."""
        self._thread.join()
        if self._connection is None:
            raise self._error or RuntimeError("connecting has not ended")
        return self._connection

    def abandon(self) -> None:
        """Nobody wants the connection any more."""
        with self._lock:
            self._is_abandoned = True
            connection = self._connection
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        options = self._cluster.options
        limit_ms = options.socket_connection_setup_timeout_ms + options.request_timeout_ms
        try:
            connection = self._cluster.open(
                self._broker.host, self._broker.port, Deadline(limit_ms)
            )
        except BaseException as error:
            # Whoever asks for the result gets it; a thread has nobody to raise to.
            if not isinstance(error, KafkaError):
                error.add_note(f"while connecting to {self._broker}")
            self._error = error
        else:
            with self._lock:
                self._connection = connection
                if self._is_abandoned:
                    connection.close()
        with contextlib.suppress(OSError):  # the one who waited is gone
            self._done()
