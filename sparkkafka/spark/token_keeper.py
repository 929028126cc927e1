"""Gets the delegation tokens of `spark.kafka.clusters.*` in the driver's Python, and renews them.

They are in a file of the driver's user, which the processes that plan queries read (tokens.py). The
login that a token was got with stays here.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sparkkafka.client.admin.admin import Admin
from sparkkafka.client.admin.tokens import DelegationToken
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError
from sparkkafka.secret import Secret
from sparkkafka.spark.tokens import CLUSTERS, TARGET, VARIABLE, configured_clusters

log = logging.getLogger(__name__)

_RENEW_AT: Final = 0.75
"""Of a token's time: Spark's spark.security.credentials.renewalRatio."""
_RETRY_S: Final = 60.0
_CALL_S: Final = 20.0
_LOST: Final = (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, ErrorCode.DELEGATION_TOKEN_EXPIRED)

_SERVERS: Final = "auth.bootstrap.servers"
_MECHANISM: Final = "sasl.token.mechanism"
_KAFKA: Final = "kafka."
_KEYTAB: Final = {
    "spark.kerberos.keytab": "sasl.kerberos.keytab",
    "spark.kerberos.principal": "sasl.kerberos.principal",
}


@dataclass(frozen=True)
class TokenCluster:
    """One `spark.kafka.clusters.<name>`. `settings` are an Admin's: how the driver logs in."""

    name: str
    target: re.Pattern[str]
    protocol: str
    mechanism: str
    settings: Mapping[str, str] = field(repr=False)


def token_clusters(conf: Mapping[str, str]) -> list[TokenCluster]:
    """What `spark.kafka.clusters.*` says, with Spark's defaults. Raises OptionError."""
    return [_cluster(name, rows, conf) for name, rows in configured_clusters(conf).items()]


def _cluster(name: str, rows: dict[str, str], conf: Mapping[str, str]) -> TokenCluster:
    where = f"{CLUSTERS}{name}"
    servers = rows.pop(_SERVERS, "")
    if not servers:
        raise OptionError(f"{where}.{_SERVERS} is not set: a token is got from these brokers")
    word = rows.pop(TARGET, ".*")
    try:
        target = re.compile(word)
    except re.error as error:
        raise OptionError(f"{where}.{TARGET} is no regular expression: {error}") from None
    mechanism = rows.pop(_MECHANISM, "SCRAM-SHA-512")
    if not mechanism.startswith("SCRAM-"):
        raise OptionError(f"{where}.{_MECHANISM} is a SCRAM mechanism, got {mechanism!r}")
    protocol = rows.pop("security.protocol", "SASL_SSL")
    settings = {"bootstrap.servers": servers, "security.protocol": protocol}
    for key in sorted(rows, key=lambda key: key.startswith(_KAFKA)):  # kafka.* counts in the end
        settings[key.removeprefix(_KAFKA)] = rows[key]
    if protocol.startswith("SASL") and not {"sasl.mechanism", "sasl.jaas.config"} & settings.keys():
        settings["sasl.mechanism"] = "GSSAPI"
        settings |= {own: conf[theirs] for theirs, own in _KEYTAB.items() if conf.get(theirs)}
    return TokenCluster(name, target, protocol, mechanism, settings)


class TokenKeeper:
    """Has a token of each cluster, in the file `path`, and renews it until the process ends.

    A token that cannot be renewed any more gives way to a new one, which queries get that are
    planned from then on. What fails is logged, tried again after a minute, and told to queries that
    need the token.
    """

    def __init__(self, clusters: Sequence[TokenCluster]) -> None:
        self.clusters = tuple(clusters)
        self._tokens: dict[str, DelegationToken] = {}
        self._due_at_s: dict[str, float] = {}  # seconds since 1970
        self._failures: dict[str, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="sparkkafka-tokens-"))  # 0700
        self.path = self._folder / "tokens.json"
        os.environ[VARIABLE] = str(self.path)
        self._closing = threading.Event()
        atexit.register(self.close)
        self._write()
        wait_s = self._round()
        self._thread = threading.Thread(
            target=self._run, args=(wait_s,), name="sparkkafka-tokens", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if os.environ.get(VARIABLE) == str(self.path):
            del os.environ[VARIABLE]
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, wait_s: float) -> None:
        while not self._closing.wait(wait_s):
            wait_s = self._round()

    def _round(self) -> float:
        """Gets and renews what is due. Returns the seconds until the next is."""
        next_s = min((self._look_after(cluster) for cluster in self.clusters), default=_RETRY_S)
        try:
            if not self._closing.is_set():
                self._write()
        except OSError as error:  # a full disk, or somebody has cleaned up: it may pass
            log.warning("%s cannot be written: %s", self.path, error)
            return min(next_s, _RETRY_S)
        return next_s

    def _look_after(self, cluster: TokenCluster) -> float:
        name = cluster.name
        due_s = self._due_at_s.get(name, 0.0) - time.time()
        if due_s > 0:
            return due_s
        now_s = time.time()
        try:
            token = self._renewed_or_new(cluster)
        except KafkaError as error:
            if isinstance(error, BrokerError) and error.code in _LOST:
                self._tokens.pop(name, None)  # the next round gets a new one
                return 1.0
            self._failures[name] = str(error)
            log.warning("%s%s: no delegation token: %s", CLUSTERS, name, error)
            return _RETRY_S
        self._failures.pop(name, None)
        self._tokens[name] = token
        self._due_at_s[name] = now_s + _RENEW_AT * (token.expiry_timestamp_ms / 1000 - now_s)
        log.info(
            "%s%s: delegation token %s lasts until %d",
            *(CLUSTERS, name, token.token_id, token.expiry_timestamp_ms),
        )
        return max(self._due_at_s[name] - time.time(), 1.0)

    def _renewed_or_new(self, cluster: TokenCluster) -> DelegationToken:
        token = self._tokens.get(cluster.name)
        with Admin(cluster.settings) as admin:
            if token is None or not (
                time.time() * 1000 < token.expiry_timestamp_ms < token.max_timestamp_ms
            ):
                return admin.create_delegation_token(timeout_s=_CALL_S)
            ends_ms = admin.renew_delegation_token(token, timeout_s=_CALL_S)
        return dataclasses.replace(token, expiry_timestamp_ms=ends_ms)

    def _write(self) -> None:
        rows = [
            {
                "name": cluster.name,
                "target": cluster.target.pattern,
                "protocol": cluster.protocol,
                "mechanism": cluster.mechanism,
                "failure": self._failures.get(cluster.name, ""),
                **self._login(cluster.name),
            }
            for cluster in self.clusters
        ]
        part = self.path.with_suffix(".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(rows, file, default=Secret.reveal)
        part.replace(self.path)

    def _login(self, name: str) -> dict[str, Any]:
        token = self._tokens.get(name)
        if token is None:
            return {}
        return {
            "token_id": token.token_id,
            "hmac": token.hmac_as_base64,
            "ends_ms": token.expiry_timestamp_ms,
        }
