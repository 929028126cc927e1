"""A real KDC of MIT's Kerberos on loopback, with a realm, keys and tickets of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkkafka.testing.kafka.ports import ReservedPorts

REALM = "TEST.EXAMPLE"
PASSWORD = "hush-kdc"
_SBIN = "/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Kdc:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            "KRB5_CONFIG": str(self.folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
        }

    def run(self, *command: str, given: str = "") -> str:
        done = subprocess.run(
            command,
            env={**os.environ, **self.environment},
            input=given,
            text=True,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def keytab(self, principal: str, file: str) -> Path:
        """Adds the principal if need be; returns the file with its key."""
        path = self.folder / file
        self.run(_tool("kadmin.local"), "-r", REALM, "-q", f"addprinc -randkey {principal}")
        self.run(_tool("kadmin.local"), "-r", REALM, "-q", f"ktadd -k {path} {principal}")
        assert path.exists()
        return path

    def cache(self, principal: str, keytab: Path, file: str, life: str = "1h") -> Path:
        """A file with a ticket, as kinit makes it."""
        path = self.folder / file
        self.run("kinit", "-l", life, "-k", "-t", str(keytab), "-c", f"FILE:{path}", principal)
        return path

    def start(self) -> None:
        with (self.folder / "kdc.out").open("ab") as output:
            self.process = subprocess.Popen(
                [_tool("krb5kdc"), "-n", "-r", REALM, "-P", str(self.folder / "kdc.pid")],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until_s = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < until_s, (self.folder / "kdc.out").read_text()
                time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None


def _tool(name: str) -> str:
    found = shutil.which(name, path=_SBIN)
    assert found, f"{name} is not here: on Debian apt-get install krb5-kdc krb5-admin-server"
    return found


@contextmanager
def kdc() -> Iterator[Kdc]:
    with tempfile.TemporaryDirectory(prefix="sparkkafka-kdc-") as name, ReservedPorts() as ports:
        folder, port = Path(name), ports.take()
        found = Kdc(folder, port)
        (folder / "krb5.conf").write_text(
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n"
            " dns_lookup_realm = false\n dns_canonicalize_hostname = false\n rdns = false\n"
            " udp_preference_limit = 1\n"
            f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n"
        )
        (folder / "kdc.conf").write_text(
            f'[kdcdefaults]\n kdc_listen = ""\n kdc_tcp_listen = 127.0.0.1:{port}\n'
            f"[realms]\n {REALM} = {{\n  database_name = {folder}/principal\n"
            f"  key_stash_file = {folder}/stash\n  acl_file = {folder}/acl\n"
            f"  max_life = 1h\n }}\n[logging]\n kdc = FILE:{folder}/kdc.log\n"
        )
        found.run(_tool("kdb5_util"), "create", "-s", "-r", REALM, "-P", PASSWORD)
        found.start()
        try:
            yield found
        finally:
            found.stop()
