"""Receives the reports of the driver's processes and the tasks, by UDP, in a thread of its own."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import threading
from collections import OrderedDict
from typing import Final

from sparkkafka.config.kinds import METRICS_KEY_BYTES, MetricsAddress
from sparkkafka.errors import OptionError
from sparkkafka.monitoring.numbers import Numbers
from sparkkafka.spark.metric_reports import MAC_BYTES, MAX_BYTES, BadReportError, parse_report

log = logging.getLogger(__name__)

WAIT_S: Final = 0.5
"""How long closing may take."""
BUFFER_BYTES: Final = 4 * 2**20
"""Asked of the system, which may give less: so many reports may come at once."""
MAX_SEEN: Final = 10_000
"""Reports that are remembered, so that a copy of one is not counted again."""


class Receiver:
    """Listens at once; `address` is the value for `metricsAddress`. To be closed.

    `host` is where to listen, an address or a name of this machine. Raises OptionError.
    """

    def __init__(self, numbers: Numbers, host: str, port: int) -> None:
        self._numbers = numbers
        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            self._socket = socket.socket(family, socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            raise OptionError(
                f"reports_host={host!r} is no address of this machine: {error}"
            ) from None
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self._socket.settimeout(WAIT_S)
            self._socket.bind(place)
            found = self._socket.getsockname()
            if ipaddress.ip_address(found[0]).is_unspecified:
                raise OSError("executors send to it, and it is no address of a machine")
        except OSError as error:
            self._socket.close()
            raise OptionError(
                f"metrics cannot listen on reports_host={host!r} reports_port={port}: {error}. It "
                "is an address of this machine that the executors reach"
            ) from None
        self.address = MetricsAddress(found[0], found[1], os.urandom(METRICS_KEY_BYTES))
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._receive, name="sparkkafka-metrics-reports", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(4 * WAIT_S)
        self._socket.close()

    def _receive(self) -> None:
        while not self._closing.is_set():
            try:
                datagram = self._socket.recv(2 * MAX_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                if not self._closing.is_set():
                    log.warning("reports for metrics are not received any more: %s", error)
                return
            self.take(datagram)

    def take(self, datagram: bytes) -> None:
        """Count a report; whatever else comes is dropped, and counted as that."""
        try:
            report = parse_report(datagram, self.address.key)
        except BadReportError as error:
            self._numbers.dropped(str(error))
            return
        mac = datagram[:MAC_BYTES]
        if mac in self._seen:
            self._numbers.dropped("repeated")
            return
        self._seen[mac] = None
        if len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        self._numbers.report(report)
