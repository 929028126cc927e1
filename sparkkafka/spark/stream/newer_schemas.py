"""Says when a subject gets a version after a stream was planned, which keeps the one it has."""

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

LOOK_S = 60.0
"""How often the registry is asked."""
LIMIT_MS = 5_000


class NewerSchemas:
    """Looks, in a thread, for versions newer than those of the columns, and logs each once.

    A registry that is away is no matter: the stream needs it for unknown ids only.
    """

    def __init__(self, options: ReadOptions, columns: tuple[ReadColumn, ...]) -> None:
        self._options = options
        self._plans = list(_followed(options, columns))
        self._next_s = time.monotonic() + LOOK_S
        self._said: set[tuple[str, int]] = set()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Returns immediately."""
        if not self._plans or time.monotonic() < self._next_s:
            return
        if self._thread is not None and self._thread.is_alive():
            return
        self._next_s = time.monotonic() + LOOK_S
        self._thread = threading.Thread(
            target=self._look, name="sparkkafka-newer-schemas", daemon=True
        )
        self._thread.start()

    def _look(self) -> None:
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
                if latest.id != plan.schema_id and (subject, latest.id) not in self._said:
                    self._said.add((subject, latest.id))
                    log.warning(
                        "subject %s has a newer version, %s (schema id %d); this query goes on "
                        "with schema id %d, and takes the newer one when it is started again",
                        subject,
                        latest.version,
                        latest.id,
                        plan.schema_id,
                    )
        except KafkaError as error:
            log.debug("newer versions of schemas were not looked up: %s", error)


def _followed(options: ReadOptions, columns: tuple[ReadColumn, ...]) -> Iterator[ColumnPlan]:
    """The plans that have a subject's latest version."""
    formats = options.formats
    if formats is None:
        return
    given = {one.column for one in (formats.key, formats.value) if one.schema_version is not None}
    for column in columns:
        for _, plan in column.plans:
            if plan.schema_id is not None and plan.subject and column.name not in given:
                yield plan
