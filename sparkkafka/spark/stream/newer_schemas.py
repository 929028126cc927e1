"""Logs when a subject gets a newer version; a running stream keeps the schema of its start."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from sparkkafka.config.options import ReadOptions
from sparkkafka.errors import KafkaError
from sparkkafka.schemas.column import ColumnPlan
from sparkkafka.schemas.registry.client import RegistryClient
from sparkkafka.spark.schema import ReadColumn

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 60.0
"""Between two requests to the registry."""
LIMIT_MS = 5_000


class NewerSchemas:
    """Checks, in a thread, for versions newer than those of the columns, and logs each once.

    An unreachable registry is no error: the stream needs it for unknown ids only.
    """

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...]) -> None:
        self._options = options
        self._plans = list(_followed(options, columns))
        self._next_s = time.monotonic() + CHECK_INTERVAL_S
        self._logged: set[tuple[str, int]] = set()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Start a check in a thread if the last one is long enough ago. Returns immediately."""
        if not self._plans or time.monotonic() < self._next_s:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._next_s = time.monotonic() + CHECK_INTERVAL_S
        self._thread = threading.Thread(
            target=self._check, name="sparkkafka-newer-schemas", daemon=True
        )
        self._thread.start()

    def _check(self) -> None:
        formats = self._options.formats
        if formats is None or formats.registry is None:
            return
        limits = replace(
            formats.registry, api_timeout_ms=LIMIT_MS, request_timeout_ms=LIMIT_MS, max_retries=0
        )
        try:
            registry = RegistryClient(limits)
            for plan in self._plans:
                subject = plan.subject or ""
                latest = registry.latest(subject)
                if latest.id != plan.schema_id and (subject, latest.id) not in self._logged:
                    self._logged.add((subject, latest.id))
                    log.warning(
                        "subject %s has a newer version, %s (schema id %d); this query continues "
                        "with schema id %d, and uses the newer one after its next start",
                        subject,
                        latest.version,
                        latest.id,
                        plan.schema_id,
                    )
        except KafkaError as error:
            log.debug("newer versions of schemas were not looked up: %s", error)


def _followed(options: ReadOptions, columns: tuple[ReadColumn, ...]) -> Iterator[ColumnPlan]:
    """Yield the plans that use a subject's latest version."""
    formats = options.formats
    if formats is None:
        return
    with_version = {
        format.column
        for format in (formats.key, formats.value)
        if format.schema_version is not None
    }
    for column in columns:
        for _, plan in column.plans:
            if plan.schema_id is not None and plan.subject and column.name not in with_version:
                yield plan
