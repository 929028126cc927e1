"""Delegation tokens (KIP-48) of jobs with `spark.kafka.clusters.<id>.*`, as Spark's connector has.

The driver logs in to each of these clusters once and gets a token there (token_keeper.py). A read
or write that has no login of its own uses the token of the cluster whose
`target.bootstrap.servers.regex` fits its servers (KafkaTokenUtil, KafkaConfigUpdater in Spark).

Every process that plans a query imports this; only those of a job with such clusters do more.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any, Final

from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

CLUSTERS: Final = "spark.kafka.clusters."
TARGET: Final = "target.bootstrap.servers.regex"
VARIABLE: Final = "SPARKKAFKA_TOKENS"
"""Where the keeper's file is. Spark gives it to the processes that it starts for a registered
format, and planning runs on the driver's machine. Tasks get a token with their plan."""

_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PROTOCOL: Final = "kafka.security.protocol"
_SASL: Final = "kafka.sasl.mechanism"
_NOT_A_LOGIN: Final = frozenset({_SASL, "kafka.sasl.kerberos.service.name"})


def configured_clusters(conf: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the settings of `spark.kafka.clusters.<id>.*` by id."""
    clusters: dict[str, dict[str, str]] = {}
    for name, value in sorted(conf.items()):
        if name.startswith(CLUSTERS):
            cluster, _, key = name.removeprefix(CLUSTERS).partition(".")
            clusters.setdefault(cluster, {})[key] = value
    return clusters


def with_token(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with a token's login if they have none and a token fits their servers.

    As in Spark's connector, the query's own login or the JVM's takes precedence. Raises OptionError
    if several tokens fit, or if the one that fits is missing or has expired.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return options
    import json
    from pathlib import Path

    names = {name.lower(): name for name in options}
    if _has_login(options, names):
        return options
    try:
        rows = json.loads(Path(path).read_text("utf-8"), object_hook=_hidden)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged"
        raise OptionError(
            f"the driver's file of delegation tokens cannot be read ({path}: {reason}): "
            "call sparkkafka.register(spark) again, or give the query kafka.sasl.* of its own"
        ) from None
    bootstrap_servers = str(options.get(names.get("kafka.bootstrap.servers", ""), ""))
    servers = [server.strip() for server in bootstrap_servers.split(",")]
    found = [row for row in rows if any(re.fullmatch(row["target"], server) for server in servers)]
    if not found:
        return options
    if len(found) > 1:
        clusters = ", ".join(row["name"] for row in found)
        raise OptionError(
            f"the delegation tokens of {CLUSTERS}{{{clusters}}} all are for "
            f"kafka.bootstrap.servers={bootstrap_servers}: make their {TARGET} exclude each other"
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
    return {
        **kept,
        _SASL: row["mechanism"],
        "kafka.sasl.jaas.config": (
            f'{_LOGIN} required tokenauth="true" username="{row["token_id"]}" '
            f'password="{row["hmac"].reveal()}";'
        ),
    }


def _hidden(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its secret hidden: a traceback with locals would show it."""
    return {**row, "hmac": Secret(row.get("hmac", ""))}


def _has_login(options: Mapping[str, Any], names: Mapping[str, str]) -> bool:
    protocol = str(options[names[_PROTOCOL]]).strip().upper() if _PROTOCOL in names else "SASL"
    own = {key for key in names if key.startswith("kafka.sasl.")} - _NOT_A_LOGIN
    if own or not protocol.startswith("SASL"):
        return True
    from sparkkafka.config.security.jvm import LOGIN_CONFIG, jvm_property

    return bool(jvm_property(LOGIN_CONFIG))
