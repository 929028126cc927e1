"""Java's part of security settings: class names, sasl.jaas.config, and properties of the JVM.

No Java class runs here. A class whose work is done here is accepted for that work. Platforms move
classes into packages of their own (Databricks: kafkashaded.org.apache.kafka…,
shadedmskiam.software.amazon…), so any prefix before a known name is accepted.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from sparkkafka.config.security.settings import Store
from sparkkafka.errors import OptionError
from sparkkafka.secret import Secret

# --- classes that settings name --------------------------------------------------------------

SECURITY_PACKAGE: Final = "org.apache.kafka.common.security."
_OAUTH: Final = f"{SECURITY_PACKAGE}oauthbearer."
_AWS: Final = "software.amazon.msk.auth.iam."

AWS_LOGIN_HANDLER: Final = f"{_AWS}IAMOAuthBearerLoginCallbackHandler"

DEFAULT_LOGIN_HANDLER: Final = (
    f"{SECURITY_PACKAGE}authenticator.AbstractLogin$DefaultLoginCallbackHandler"
)
"""Java's default for all mechanisms but OAUTHBEARER."""

ENDPOINT_HANDLERS: Final = (
    f"{_OAUTH}OAuthBearerLoginCallbackHandler",
    f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
)
"""They get a token from an endpoint or a file. The settings of these do that here."""

UNSECURED_HANDLER: Final = f"{_OAUTH}internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
"""Java's default for OAUTHBEARER. Its tokens have no signature."""

STRIMZI_HANDLER: Final = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
GOOGLE_HANDLER: Final = "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"

LOGIN_HANDLERS: Final = (
    DEFAULT_LOGIN_HANDLER,
    *ENDPOINT_HANDLERS,
    AWS_LOGIN_HANDLER,
    UNSECURED_HANDLER,
    STRIMZI_HANDLER,
    GOOGLE_HANDLER,
)

CLIENT_HANDLERS: Final = (
    f"{SECURITY_PACKAGE}authenticator.SaslClientCallbackHandler",
    f"{_OAUTH}internals.OAuthBearerSaslClientCallbackHandler",
    f"{_AWS}IAMClientCallbackHandler",
    AWS_LOGIN_HANDLER,
)
"""They pass a login's credentials on to the connection. No handler is needed for that here."""

JWT_BEARER_RETRIEVER: Final = f"{_OAUTH}JwtBearerJwtRetriever"
"""It requests a token with an assertion (KIP-1139)."""
RETRIEVERS: Final = (
    f"{_OAUTH}DefaultJwtRetriever",
    f"{_OAUTH}ClientCredentialsJwtRetriever",
    f"{_OAUTH}FileJwtRetriever",
    JWT_BEARER_RETRIEVER,
)


def known_class(name: str, classes: tuple[str, ...]) -> str | None:
    """Return which of `classes` the name is, also in another package, since platforms move classes
    into packages of their own. None if it is none of them."""
    name = name.strip()
    return next((known for known in classes if name == known or name.endswith(f".{known}")), None)


# --- sasl.jaas.config ------------------------------------------------------------------------

JAAS: Final = "sasl.jaas.config"

_TOKEN = re.compile(
    r"""
    (?P<blank> \s+ | //[^\n]* | /\*.*?\*/ )
  | "(?P<double> (?:[^"\\\n]|\\.)* )"
  | '(?P<single> (?:[^'\\\n]|\\.)* )'
  | (?P<sign> [=;] )
  | (?P<word> [^\s"'=;]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class LoginModule:
    """A login module of sasl.jaas.config. `name` is its class without the package.

    `options` contain secrets, so repr leaves them out.
    """

    name: str
    options: dict[str, str] = field(repr=False)

    def is_true(self, option: str) -> bool:
        return self.options.get(option, "").lower() == "true"


def parse_jaas(text: str) -> LoginModule:
    """Parse the one login module of sasl.jaas.config, as Java's JaasConfig does:

        org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p";

    Raises ValueError, whose message contains no part of the text, since that has passwords.
    """
    tokens = list(_jaas_tokens(text))
    words = [value for kind, value in tokens[:2] if kind == "word"]
    flags = ("required", "requisite", "sufficient", "optional")
    if len(words) < 2 or words[1].lower() not in flags:
        raise ValueError(f"it begins with a login module's class and one of {', '.join(flags)}")
    options: dict[str, str] = {}
    rest = iter(tokens[2:])
    for kind, name in rest:
        if (kind, name) == ("sign", ";"):
            break
        sign, (value_kind, value) = next(rest, ("", "")), next(rest, ("", ""))
        if kind == "sign" or sign != ("sign", "=") or value_kind in ("", "sign"):
            raise ValueError(
                "options are name=value, values with other than letters and digits in double quotes"
            )
        if name in options:
            raise ValueError("an option occurs twice")
        options[name] = value
    else:
        raise ValueError("the semicolon at its end is missing")
    if next(rest, None) is not None:
        raise ValueError("something follows the semicolon: one login module is allowed")
    return LoginModule(words[0].rpartition(".")[2], options)


def _jaas_tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of each token: kind is "word", "quoted" (unescaped) or "sign" (= or ;)."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a quotation mark is not closed")
        position = match.end()
        kind = str(match.lastgroup)
        if kind in ("double", "single"):
            escape = r"\\(?:([0-3]?[0-7]{1,2})|(.))"
            yield "quoted", re.sub(escape, _unescape, match[kind], flags=re.DOTALL)
        elif kind != "blank":
            yield kind, match[kind]


def _unescape(match: re.Match[str]) -> str:
    """Return the character of an escape in a quoted text, as Java's StreamTokenizer reads it."""
    octal, letter = match.groups()
    control = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
    return chr(int(octal, 8)) if octal else control.get(letter, letter)


# --- properties of the JVM that started this process -----------------------------------------
#
# Spark's Python processes are children of the JVM of their driver or executor. Its command line is
# in /proc, and its options are in the environment that it passes on. Elsewhere (another system than
# Linux, the client library in a program of its own) there is nothing to find.

LOGIN_CONFIG: Final = "java.security.auth.login.config"

_MAX_FILE_BYTES: Final = 2**20


def jvm_property(name: str) -> Secret:
    """Return a system property of the JVM that is an ancestor of this process; empty without."""
    return _jvm_properties(os.getpid()).get(name, Secret(""))


def jvm_truststore() -> Store:
    """Return the JVM's own truststore, if it has one. Java uses it before the system's."""
    option = "javax.net.ssl.trustStore"
    return Store(
        f"the JVM's {option}",
        jvm_property(option).reveal(),
        password=jvm_property(f"{option}Password"),
    )


def login_section() -> tuple[Secret, str]:
    """Return (text of KafkaClient in the JVM's login file, path); both empty without such a file.

    Raises OptionError if the file cannot be read, or has no such section.
    """
    path = jvm_property(LOGIN_CONFIG).reveal()
    if not path:
        return Secret(""), ""
    file_name = f"{path}, which the JVM's {LOGIN_CONFIG} names,"
    try:
        with Path(path.removeprefix("file:")).open("rb") as file:
            text = file.read(_MAX_FILE_BYTES + 1).decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(
            f"{file_name} cannot be read ({reason}): set sasl.jaas.config, which needs no file"
        ) from None
    # KafkaClient is the section that Kafka's JaasContext reads.
    section = r"""KafkaClient\s*\{((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^"'{}])*)\}"""
    match = re.search(section, text, re.DOTALL)
    if match is None or len(text) > _MAX_FILE_BYTES:
        raise OptionError(f"{file_name} has no section KafkaClient: set sasl.jaas.config")
    return Secret(match[1].strip()), path


@cache
def _jvm_properties(pid: int) -> dict[str, Secret]:
    """Return the -D options of the JVM that is an ancestor of process `pid`; empty without one."""
    command = _jvm_command(pid, Path("/proc"))
    if command is None:
        return {}
    properties: dict[str, Secret] = {}
    for variable in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "KAFKA_OPTS"):
        text = os.environ.get(variable, "")
        try:
            properties |= _d_options(shlex.split(text))
        except ValueError:  # a quotation mark is not closed
            properties |= _d_options(text.split())
    return properties | _d_options(command)  # the command line overrides the variables


def _d_options(arguments: list[str]) -> dict[str, Secret]:
    """Return the system properties that the arguments -Dname=value set."""
    pairs = (argument[2:].partition("=") for argument in arguments if argument.startswith("-D"))
    return {name: Secret(value) for name, _, value in pairs}


def _jvm_command(pid: int, proc: Path) -> list[str] | None:
    """Return the arguments of the nearest ancestor that is a JVM, None if there is none."""
    for _ in range(16):  # more ancestors than a process has
        try:
            status = (proc / str(pid) / "status").read_text()
            pid = int(status.partition("PPid:")[2].split()[0])
            with (proc / str(pid) / "cmdline").open("rb") as file:
                arguments = file.read(_MAX_FILE_BYTES).split(b"\0")
        except (OSError, ValueError, IndexError):
            return None
        if re.fullmatch(rb"(?:.*/)?java", arguments[0]):
            return [argument.decode("utf-8", "replace") for argument in arguments[1:]]
    return None
