"""Delegation tokens (KIP-48) of jobs with `spark.kafka.clusters.<id>.*`, as Spark's connector has.

The driver's Python process logs in to each of these clusters once, gets a token there, and renews
it (`TokenKeeper`). The tokens are in a file of the driver's user; the login itself does not leave
the process. A read or write that has no login of its own uses the token of the cluster whose
`target.bootstrap.servers.regex` matches its servers (`with_token`; KafkaTokenUtil and
KafkaConfigUpdater in Spark).

Every process that plans a query imports this; only those of a job with such clusters do more.
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sparkkafka.errors import BrokerError, ErrorCode, KafkaError, OptionError
from sparkkafka.secret import Secret

if TYPE_CHECKING:
    from sparkkafka.client.admin.tokens import DelegationToken

log = logging.getLogger(__name__)

CLUSTERS: Final = "spark.kafka.clusters."
TARGET: Final = "target.bootstrap.servers.regex"
"""Spark's setting of a cluster: the servers for which its token is."""
VARIABLE: Final = "SPARKKAFKA_TOKENS"
"""The path of the keeper's file. Spark hands the variable to the processes that it starts for a
registered format, and planning runs on the driver's machine. Tasks get a token with their plan."""

_PROTOCOL: Final = "kafka.security.protocol"
_SASL: Final = "kafka.sasl.mechanism"

RENEWAL_RATIO: Final = 0.75
"""The share of a token's lifetime after which it is renewed, as
spark.security.credentials.renewalRatio."""
_RETRY_S: Final = 60.0
_CALL_TIMEOUT_S: Final = 20.0


def configured_clusters(conf: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings of `spark.kafka.clusters.<id>.*` by id, as they are in `conf`."""
    clusters: dict[str, dict[str, str]] = {}
    for name, value in sorted(conf.items()):
        if name.startswith(CLUSTERS):
            cluster, _, key = name.removeprefix(CLUSTERS).partition(".")
            clusters.setdefault(cluster, {})[key] = value
    return clusters


# --- the login of a query -----------------------------------------------------------------------


def with_token(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with a token's login if they have none and a token fits their servers.

    As in Spark's connector, the query's own login or the JVM's takes precedence. Raises OptionError
    if several tokens fit, or if the one that fits is missing or has expired.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return options
    name_by_lower = {name.lower(): name for name in options}
    if _has_login(options, name_by_lower):
        return options
    try:
        # Hidden while it is parsed: a traceback with locals would show the secret.
        tokens = json.loads(
            Path(path).read_text("utf-8"),
            object_hook=lambda token: {**token, "hmac": Secret(token.get("hmac", ""))},
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise OptionError(
            f"the driver's file of delegation tokens cannot be read ({path}: {reason}): "
            "call sparkkafka.register(spark) again, or give the query kafka.sasl.* of its own"
        ) from None
    bootstrap_servers = str(options.get(name_by_lower.get("kafka.bootstrap.servers", ""), ""))
    servers = [server.strip() for server in bootstrap_servers.split(",")]
    matching = [
        token
        for token in tokens
        if any(re.fullmatch(token["target"], server) for server in servers)
    ]
    if not matching:
        return options
    if len(matching) > 1:
        clusters = ", ".join(token["name"] for token in matching)
        raise OptionError(
            f"the delegation tokens of {CLUSTERS}{{{clusters}}} all are for "
            f"kafka.bootstrap.servers={bootstrap_servers}: make their {TARGET} exclude each other"
        )
    token = matching[0]
    if "token_id" not in token or token["ends_ms"] <= time.time() * 1000:
        raise OptionError(
            f"{CLUSTERS}{token['name']} has no valid delegation token: "
            f"{token['failure'] or 'it has expired'}. Give the query kafka.security.protocol and "
            "kafka.sasl.* of its own, or correct these settings"
        )
    other_options = {name: options[name] for key, name in name_by_lower.items() if key != _SASL}
    if _PROTOCOL not in name_by_lower:
        other_options[_PROTOCOL] = token["protocol"]
    return {
        **other_options,
        _SASL: token["mechanism"],
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'tokenauth="true" username="{token["token_id"]}" '
            f'password="{token["hmac"].reveal()}";'
        ),
    }


def _has_login(options: Mapping[str, Any], name_by_lower: Mapping[str, str]) -> bool:
    """Return whether the options, or the JVM's settings, have a login, or need none.
    `name_by_lower`: the options' names by lower case."""
    name = name_by_lower.get(_PROTOCOL)
    # Without a protocol a token may be used, whose cluster then sets the protocol.
    may_need_login = name is None or str(options[name]).strip().upper().startswith("SASL")
    login_keys = {key for key in name_by_lower if key.startswith("kafka.sasl.")}
    login_keys -= {_SASL, "kafka.sasl.kerberos.service.name"}  # these are no login yet
    if login_keys or not may_need_login:
        return True
    from sparkkafka.config.security.java import LOGIN_CONFIG, jvm_property

    return bool(jvm_property(LOGIN_CONFIG))


# --- the tokens of a driver ---------------------------------------------------------------------


@dataclass(frozen=True)
class TokenCluster:
    """One `spark.kafka.clusters.<name>`.

    Queries whose servers match `target` use its token, with `protocol` and `mechanism`. `settings`
    are those of the Admin that gets the token: the driver's login.
    """

    name: str
    target: re.Pattern[str]
    protocol: str
    mechanism: str
    settings: Mapping[str, str] = field(repr=False)


def parse_clusters(conf: Mapping[str, str]) -> list[TokenCluster]:
    """Parse `spark.kafka.clusters.*`, with Spark's defaults. Raises OptionError."""
    return [
        _parse_cluster(name, values, conf) for name, values in configured_clusters(conf).items()
    ]


def _parse_cluster(
    name: str, own_settings: dict[str, str], conf: Mapping[str, str]
) -> TokenCluster:
    """Parse the settings of one cluster, `own_settings`, from which this removes those that are not
    for the Admin. `conf`: all of Spark's settings. Raises OptionError."""
    prefix = f"{CLUSTERS}{name}."
    servers = own_settings.pop("auth.bootstrap.servers", "")
    if not servers:
        raise OptionError(f"{prefix}auth.bootstrap.servers is not set: it issues the token")
    pattern = own_settings.pop(TARGET, ".*")
    try:
        target = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"{prefix}{TARGET} is not a regular expression: {error}") from None
    mechanism = own_settings.pop("sasl.token.mechanism", "SCRAM-SHA-512")
    if not mechanism.startswith("SCRAM-"):
        raise OptionError(
            f"{prefix}sasl.token.mechanism must be a SCRAM mechanism, got {mechanism!r}"
        )
    protocol = own_settings.pop("security.protocol", "SASL_SSL")
    settings = {"bootstrap.servers": servers, "security.protocol": protocol}
    # kafka.* takes precedence, so it comes last.
    for key in sorted(own_settings, key=lambda key: key.startswith("kafka.")):
        settings[key.removeprefix("kafka.")] = own_settings[key]
    if protocol.startswith("SASL") and not {"sasl.mechanism", "sasl.jaas.config"} & settings.keys():
        settings["sasl.mechanism"] = "GSSAPI"
        for key in ("keytab", "principal"):
            if conf.get(f"spark.kerberos.{key}"):
                settings[f"sasl.kerberos.{key}"] = conf[f"spark.kerberos.{key}"]
    return TokenCluster(name, target, protocol, mechanism, settings)


class TokenKeeper:
    """Keeps a token of each cluster in the file `path`, and renews it until the process ends.

    If a token cannot be renewed any more, the keeper gets a new one for queries that are planned
    from then on. A failure is logged, and the request is repeated after a minute; a query that
    needs the token raises the failure.
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
        wait_s = self._renew_all_due()
        self._thread = threading.Thread(
            target=self._renew_until_closed, args=(wait_s,), name="sparkkafka-tokens", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop renewing, and delete the file of tokens."""
        self._closing.set()
        if os.environ.get(VARIABLE) == str(self.path):
            del os.environ[VARIABLE]
        shutil.rmtree(self._folder, ignore_errors=True)

    def _renew_until_closed(self, wait_s: float) -> None:
        """Renew the tokens that are due, in a loop that ends with `close`. `wait_s`: the seconds
        until the first one is due."""
        while not self._closing.wait(wait_s):
            wait_s = self._renew_all_due()

    def _renew_all_due(self) -> float:
        """Get or renew the tokens that are due. Return the seconds until the next one is."""
        wait_s = min((self._renew_if_due(cluster) for cluster in self.clusters), default=_RETRY_S)
        try:
            if not self._closing.is_set():
                self._write()
        except OSError as error:  # a full disk, or a deleted folder: this may pass
            log.warning("%s cannot be written: %s", self.path, error)
            return min(wait_s, _RETRY_S)
        return wait_s

    def _renew_if_due(self, cluster: TokenCluster) -> float:
        """Get or renew the cluster's token if it is due. Return the seconds until it is again."""
        name, now_s = cluster.name, time.time()
        wait_s = self._due_at_s.get(name, 0.0) - now_s
        if wait_s > 0:
            return wait_s
        try:
            token = self._request_token(cluster)
        except KafkaError as error:
            if isinstance(error, BrokerError) and error.code in (
                ErrorCode.DELEGATION_TOKEN_NOT_FOUND,
                ErrorCode.DELEGATION_TOKEN_EXPIRED,
            ):
                self._tokens.pop(name, None)  # the next call, in a second, gets a new one
                return 1.0
            self._failures[name] = str(error)
            log.warning("%s%s: no delegation token: %s", CLUSTERS, name, error)
            return _RETRY_S
        self._failures.pop(name, None)
        self._tokens[name] = token
        self._due_at_s[name] = now_s + RENEWAL_RATIO * (token.expiry_timestamp_ms / 1000 - now_s)
        log.info(
            "%s%s: delegation token %s lasts until %d",
            *(CLUSTERS, name, token.token_id, token.expiry_timestamp_ms),
        )
        return max(self._due_at_s[name] - time.time(), 1.0)

    def _request_token(self, cluster: TokenCluster) -> DelegationToken:
        """Renew the cluster's token, or create one if there is none that can be renewed."""
        from sparkkafka.client.admin.admin import Admin

        token = self._tokens.get(cluster.name)
        with Admin(cluster.settings) as admin:
            if token is None or not (
                time.time() * 1000 < token.expiry_timestamp_ms < token.max_timestamp_ms
            ):
                return admin.create_delegation_token(timeout_s=_CALL_TIMEOUT_S)
            ends_ms = admin.renew_delegation_token(token, timeout_s=_CALL_TIMEOUT_S)
        return replace(token, expiry_timestamp_ms=ends_ms)

    def _write(self) -> None:
        """Replace the file of tokens, from which `with_token` reads, in one step."""
        rows = []
        for cluster in self.clusters:
            row: dict[str, object] = {
                "name": cluster.name,
                "target": cluster.target.pattern,
                "protocol": cluster.protocol,
                "mechanism": cluster.mechanism,
                "failure": self._failures.get(cluster.name, ""),
            }
            token = self._tokens.get(cluster.name)
            if token is not None:
                row |= {
                    "token_id": token.token_id,
                    "hmac": token.hmac_as_base64,
                    "ends_ms": token.expiry_timestamp_ms,
                }
            rows.append(row)
        temporary = self.path.with_suffix(".part")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(rows, file, default=Secret.reveal)
        temporary.replace(self.path)
