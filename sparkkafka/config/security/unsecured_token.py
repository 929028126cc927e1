"""What an unsecured token for OAUTHBEARER says: a JSON Web Token without a signature.

Anybody can make one, so brokers take them in tests alone. Java's options of sasl.jaas.config
(OAuthBearerUnsecuredLoginCallbackHandler), and librdkafka's sasl.oauthbearer.config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from sparkkafka.errors import OptionError

JAVA_PREFIX = "unsecuredLogin"
_KINDS = ("StringClaim_", "NumberClaim_", "ListClaim_")
_LIFE_S = 3_600
_PAIR = re.compile(r'\s*([A-Za-z_]+)=(?:"([^"]*)"|(\S+))')

Claim = str | float | tuple[str, ...]


class UnsecuredToken(NamedTuple):
    """`claims` without times, which are those of its making: iat, and exp `life_s` later."""

    claims: tuple[tuple[str, Claim], ...]
    life_s: float
    extensions: tuple[tuple[str, str], ...]


def of_java(options: Mapping[str, str], place: str) -> UnsecuredToken:
    """From the options of OAuthBearerLoginModule. Raises OptionError, which names the option."""
    given = {
        name.removeprefix(JAVA_PREFIX): value
        for name, value in options.items()
        if name.startswith(JAVA_PREFIX)
    }
    principal = given.pop("PrincipalClaimName", "") or "sub"
    scope = given.pop("ScopeClaimName", "") or "scope"
    life_s = _number(given.pop("LifetimeSeconds", str(_LIFE_S)), "LifetimeSeconds", place)
    claims: dict[str, Claim] = {}
    extensions = []
    for name, value in given.items():
        if name.startswith("Extension_"):
            extensions.append((name.removeprefix("Extension_"), value))
            continue
        kind = next((row for row in _KINDS if name.startswith(row) and name != row), None)
        if kind is None:
            raise OptionError(f"{place} has an option {JAVA_PREFIX}… that Java does not know")
        claim = name.removeprefix(kind)
        if kind == "StringClaim_":
            claims[claim] = value
        elif kind == "NumberClaim_":
            claims[claim] = _number(value, name, place)
        else:  # the first character stands between the others
            claims[claim] = tuple(filter(None, value[1:].split(value[0]))) if value else ()
    if not isinstance(claims.get(principal), str) or not claims[principal]:
        raise OptionError(
            f"{place}: an unsecured token needs a principal: {JAVA_PREFIX}StringClaim_{principal}"
        )
    if isinstance(claims.get(scope), int | float):
        raise OptionError(f"{place}: the scope of an unsecured token is text or a list")
    return UnsecuredToken((*claims.items(),), life_s, (*extensions,))


def of_librdkafka(text: str, option: str) -> UnsecuredToken:
    """From `principalClaimName=… principal=… scopeClaimName=… scope=a,b lifeSeconds=…
    extension_name=…`. Raises OptionError."""
    found: dict[str, str] = {}
    rest = text.strip()
    while rest:
        match = _PAIR.match(rest)
        if match is None:
            raise OptionError(f"{option} is name=value name=value …")
        found[match[1]] = match[3] if match[2] is None else match[2]
        rest = rest[match.end() :]
    extensions = tuple(
        (name.removeprefix("extension_"), found.pop(name))
        for name in [name for name in found if name.startswith("extension_")]
    )
    principal = found.pop("principalClaimName", "") or "sub"
    scope_name = found.pop("scopeClaimName", "") or "scope"
    life_s = _number(found.pop("lifeSeconds", str(_LIFE_S)), "lifeSeconds", option)
    claims: dict[str, Claim] = {principal: found.pop("principal", "")}
    scope = found.pop("scope", "")
    if scope:
        claims[scope_name] = tuple(scope.split(","))
    if found:
        raise OptionError(
            f"{option} has names that are not known; there are principalClaimName, principal, "
            "scopeClaimName, scope, lifeSeconds and extension_…"
        )
    if not claims[principal]:
        raise OptionError(f"{option} needs a principal: principal=NAME")
    return UnsecuredToken((*claims.items(),), life_s, extensions)


def _number(text: str, name: str, place: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not abs(found) < 1e15 or (name[0] in "Ll" and found <= 0):
        raise OptionError(f"{name} in {place} must be a number")
    return int(found) if found == int(found) else found
