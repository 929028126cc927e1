"""Delegation tokens (KIP-48) of jobs with `spark.kafka.clusters.<id>.*`, as Spark's connector has.

The driver logs in to each of these clusters once and gets a token there. A read or write that has
no login of its own uses the token of the cluster whose `target.bootstrap.servers.regex` fits its
servers (KafkaTokenUtil, KafkaConfigUpdater in Spark).

    TokenKeeper    in the driver's Python: gets tokens, renews them, keeps them in a file
    with_token     there, and in a process that plans a query: options with the token's login

The file is the driver's alone: planning runs on its machine. Tasks get a token with their plan, and
never the login that it was got with.
"""

from __future__ import annotations

import atexit
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
from typing import TYPE_CHECKING, Any, Final

from sparkkafka.config.security.jvm import LOGIN_CONFIG, jvm_property
from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError

if TYPE_CHECKING:
    from sparkkafka.client.admin.tokens import DelegationToken

log = logging.getLogger(__name__)

CLUSTERS: Final = "spark.kafka.clusters."
VARIABLE: Final = "SPARKKAFKA_TOKENS"
"""Where the file is. Spark gives it to the processes that it starts for a registered format."""

_RENEW_AT: Final = 0.75
"""Of a token's time: Spark's spark.security.credentials.renewalRatio."""
_RETRY_S: Final = 60.0
_CALL_S: Final = 20.0
_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"

_LOST: Final = (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, ErrorCode.DELEGATION_TOKEN_EXPIRED)

_SERVERS: Final = "auth.bootstrap.servers"
_TARGET: Final = "target.bootstrap.servers.regex"
_MECHANISM: Final = "sasl.token.mechanism"
_KAFKA: Final = "kafka."
_KEYTAB: Final = {
    "spark.kerberos.keytab": "sasl.kerberos.keytab",
    "spark.kerberos.principal": "sasl.kerberos.principal",
}
_PROTOCOL: Final = "kafka.security.protocol"
_SASL: Final = "kafka.sasl.mechanism"
_NOT_A_LOGIN: Final = frozenset({_SASL, "kafka.sasl.kerberos.service.name"})


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
    given: dict[str, dict[str, str]] = {}
    for name, value in sorted(conf.items()):
        if name.startswith(CLUSTERS):
            cluster, _, key = name.removeprefix(CLUSTERS).partition(".")
            given.setdefault(cluster, {})[key] = value
    return [_cluster(name, rows, conf) for name, rows in given.items()]


def _cluster(name: str, rows: dict[str, str], conf: Mapping[str, str]) -> TokenCluster:
    where = f"{CLUSTERS}{name}"
    servers = rows.pop(_SERVERS, "")
    if not servers:
        raise OptionError(f"{where}.{_SERVERS} is not set: a token is got from these brokers")
    word = rows.pop(_TARGET, ".*")
    try:
        target = re.compile(word)
    except re.error as error:
        raise OptionError(f"{where}.{_TARGET} is no regular expression: {error}") from None
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
        self._renewed_ms: dict[str, int] = {}
        self._ends_ms: dict[str, int] = {}
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
        due_s = self._due_s(cluster.name)
        if due_s > 0:
            return due_s
        try:
            self._get_or_renew(cluster)
        except KafkaError as error:
            if isinstance(error, BrokerError) and error.code in _LOST:
                self._tokens.pop(cluster.name, None)  # the next round gets a new one
                return 1.0
            self._failures[cluster.name] = str(error)
            log.warning("%s%s: no delegation token: %s", CLUSTERS, cluster.name, error)
            return _RETRY_S
        self._failures.pop(cluster.name, None)
        return max(self._due_s(cluster.name), 1.0)

    def _due_s(self, name: str) -> float:
        """When a token is to be renewed, in seconds from now; 0 without one."""
        token = self._tokens.get(name)
        if token is None:
            return 0.0
        began_ms = self._renewed_ms[name]
        return (began_ms + _RENEW_AT * (self._ends_ms[name] - began_ms)) / 1000 - time.time()

    def _get_or_renew(self, cluster: TokenCluster) -> None:
        from sparkkafka.client.admin.admin import Admin

        token = self._tokens.get(cluster.name)
        with Admin(cluster.settings) as admin:
            now_ms = int(time.time() * 1000)
            ends_ms = self._ends_ms.get(cluster.name, 0)
            if token is not None and now_ms < ends_ms < token.max_timestamp_ms:
                self._ends_ms[cluster.name] = admin.renew_delegation_token(token, timeout_s=_CALL_S)
            else:
                token = admin.create_delegation_token(timeout_s=_CALL_S)
                self._tokens[cluster.name] = token
                self._ends_ms[cluster.name] = token.expiry_timestamp_ms
            self._renewed_ms[cluster.name] = now_ms
        log.info(
            "%s%s: delegation token %s lasts until %d",
            *(CLUSTERS, cluster.name, token.token_id, self._ends_ms[cluster.name]),
        )

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
            json.dump(rows, file)
        part.replace(self.path)

    def _login(self, name: str) -> dict[str, Any]:
        token = self._tokens.get(name)
        if token is None:
            return {}
        return {
            "token_id": token.token_id,
            "hmac": token.hmac_as_base64.reveal(),
            "ends_ms": self._ends_ms[name],
        }


def with_token(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with the login of a token, if they have none and one is for their servers.

    As in Spark's connector a login of the job's own, or of the JVM's, counts before a token. Raises
    OptionError if several tokens, or one that is not there, would be it.
    """
    path = os.environ.get(VARIABLE)
    names = {name.lower(): name for name in options}
    if not path or _has_login(options, names) or jvm_property(LOGIN_CONFIG):
        return options
    try:
        rows = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is damaged"
        raise OptionError(
            f"the driver's file of delegation tokens cannot be read ({path}: {why}): "
            "call sparkkafka.register(spark) again, or give the query kafka.sasl.* of its own"
        ) from None
    given = str(options.get(names.get("kafka.bootstrap.servers", ""), ""))
    servers = [one.strip() for one in given.split(",")]
    found = [row for row in rows if any(re.fullmatch(row["target"], one) for one in servers)]
    if not found:
        return options
    if len(found) > 1:
        clusters = ", ".join(row["name"] for row in found)
        raise OptionError(
            f"the delegation tokens of {CLUSTERS}{{{clusters}}} all are for "
            f"kafka.bootstrap.servers={given}: make their {_TARGET} exclude each other"
        )
    row = found[0]
    if "token_id" not in row or row["ends_ms"] <= time.time() * 1000:
        raise OptionError(
            f"{CLUSTERS}{row['name']} has no delegation token that is valid: "
            f"{row['failure'] or 'it has run out'}. Give the query kafka.security.protocol and "
            "kafka.sasl.* of its own, or mend these settings"
        )
    kept = {name: options[name] for key, name in names.items() if key != _SASL}
    if _PROTOCOL not in names:
        kept[_PROTOCOL] = row["protocol"]
    # No variable has the text: an error's frame would show it.
    return {
        **kept,
        _SASL: row["mechanism"],
        "kafka.sasl.jaas.config": (
            f'{_LOGIN} required tokenauth="true" username="{row["token_id"]}" '
            f'password="{row["hmac"]}";'
        ),
    }


def _has_login(options: Mapping[str, Any], names: Mapping[str, str]) -> bool:
    protocol = str(options[names[_PROTOCOL]]).strip().upper() if _PROTOCOL in names else "SASL"
    own = {key for key in names if key.startswith("kafka.sasl.")} - _NOT_A_LOGIN
    return bool(own) or not protocol.startswith("SASL")
