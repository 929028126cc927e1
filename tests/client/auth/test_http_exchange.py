"""One exchange of HTTP: its deadline, its connection, and the host of a redirect."""

from __future__ import annotations

import socket
import threading
from email.message import Message
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import pytest

from sparkkafka.client.auth.http_exchange import HttpRequest, HttpResponse, Server, exchange
from sparkkafka.client.deadline import Deadline
from sparkkafka.config.kinds import HttpUrl
from sparkkafka.config.security.settings import Store, TlsSettings
from sparkkafka.errors import KafkaConnectionError, RegistryError
from sparkkafka.secret import Secret, SecretBytes
from tests.support.certificates import signed
from tests.support.registry_server import RegistryServer

AUTHORITY = signed("authority")
TLS = TlsSettings(truststore=Store("ssl.truststore.certificates", text=Secret(AUTHORITY.pem)))


def server(host: str, port: int) -> Server:
    return Server(
        f"https://{host}:{port}",
        HttpUrl(True, host, port, ""),
        TLS,
        1000,
        RegistryError,
        "a registry's",
        "url",
        "trust",
        "versions",
    )


def test_a_server_that_reads_slowly_does_not_move_the_deadline(tmp_path: Path) -> None:
    """The timeout of a TLS socket counts for all of what is sent, not for each of its records."""
    body_bytes = 32 << 20
    received = []
    stop = threading.Event()
    context = signed("server", AUTHORITY, hosts=("127.0.0.1",)).server_context(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def read_slowly() -> None:
            plain, _ = listener.accept()
            with context.wrap_socket(plain, server_side=True) as sock:
                sock.settimeout(20)
                try:
                    while content := sock.recv(1 << 14):
                        received.append(len(content))
                        stop.wait(0.01)
                except OSError:
                    pass

        thread = threading.Thread(target=read_slowly)
        thread.start()
        request = HttpRequest("POST", Secret("/"), {}, SecretBytes(bytes(body_bytes)))
        try:
            with pytest.raises(KafkaConnectionError, match="no response in time"):
                exchange(
                    server("127.0.0.1", listener.getsockname()[1]),
                    request,
                    Deadline(20_000),
                    connect_ms=20_000,
                    response_ms=200,
                )
        finally:
            stop.set()
            thread.join(20)
    assert sum(received) < body_bytes


def test_a_host_name_with_a_dot_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dot is not part of the name in certificates, nor in SNI (RFC 6066, 3)."""
    resolved = []
    address: Any = socket.getaddrinfo("127.0.0.1", None, type=socket.SOCK_STREAM)
    with RegistryServer(AUTHORITY) as registry:

        def getaddrinfo(host: str, port: int, **_hints: Any) -> Any:
            resolved.append(host)
            return [(*row[:4], ("127.0.0.1", port)) for row in address]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        response = exchange(
            server("localhost.", registry.port),
            HttpRequest("GET", Secret("/subjects"), {}),
            Deadline(20_000),
            connect_ms=20_000,
            response_ms=20_000,
        )
    assert (response.status, response.body.reveal()) == (200, b"[]")
    assert resolved == ["localhost."]


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("https://login.example:444/x?y=hush", "https://login.example:444"),
        ("https://me:hush@login.example/", "https://login.example"),
        ("https://me:hush/hush@login.example/", ""),
        ("https://[x", ""),
        ("/elsewhere", ""),
        (None, ""),
    ],
)
def test_the_host_of_a_redirect(location: str | None, host: str) -> None:
    headers: Message = HTTPMessage()
    if location is not None:
        headers["Location"] = location
    assert HttpResponse(302, headers, SecretBytes()).redirect_host() == host  # type: ignore[arg-type]
