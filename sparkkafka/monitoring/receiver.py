"""Receives the reports of the driver's processes and the tasks by UDP, in its own thread."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
from collections import OrderedDict
from typing import Final

from sparkkafka.config.kinds import MetricsAddress
from sparkkafka.errors import OptionError
from sparkkafka.monitoring.aggregator import MetricAggregator
from sparkkafka.spark.metric_reports import MAC_BYTES, MAX_BYTES, BadReportError, parse_report

log = logging.getLogger(__name__)

WAIT_S: Final = 0.5
"""The longest time until `close` is noticed."""


class Receiver:
    """Listens from its creation until it is closed. `address` is the value for `metricsAddress`.

    `host` is an address or a name of this machine. Raises OptionError.
    """

    def __init__(self, aggregator: MetricAggregator, host: str, port: int) -> None:
        self._aggregator = aggregator
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            raise OptionError(
                f"reports_host={host!r} is not an address of this machine: {error}"
            ) from None
        try:
            # Many reports may come at the same time. The system may grant less than this.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
            self._socket.settimeout(WAIT_S)
            self._socket.bind(address)
            bound = self._socket.getsockname()
            if ipaddress.ip_address(bound[0]).is_unspecified:
                raise OSError("executors send to it, and it is not an address of a machine")
        except OSError as error:
            self._socket.close()
            raise OptionError(
                f"metrics cannot listen on reports_host={host!r} reports_port={port}: {error}. It "
                "is an address of this machine that the executors reach"
            ) from None
        self.address = MetricsAddress(bound[0], bound[1], os.urandom(16))
        self._seen: OrderedDict[bytes, None] = OrderedDict()  # the hashes of the last datagrams
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._receive_until_closed, name="sparkkafka-metrics-reports", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(4 * WAIT_S)
        self._socket.close()

    def _receive_until_closed(self) -> None:
        """Receive datagrams until `close`."""
        while not self._closing.is_set():
            try:
                datagram = self._socket.recv(2 * MAX_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closing.is_set():
                    log.warning("reports for metrics are no longer received: %s", error)
                return
            self.receive_datagram(datagram)

    def receive_datagram(self, datagram: bytes) -> None:
        """Add the datagram's report to the values. An invalid or repeated datagram is dropped, and
        counted as that."""
        try:
            report = parse_report(datagram, self.address.key)
        except BadReportError as error:
            self._aggregator.count_dropped(str(error))
            return
        mac = datagram[:MAC_BYTES]  # no two datagrams have the same, since each has random bytes
        if mac in self._seen:
            self._aggregator.count_dropped("repeated")
            return
        self._seen[mac] = None
        if len(self._seen) > 10_000:
            self._seen.popitem(last=False)
        self._aggregator.add_report(report)
