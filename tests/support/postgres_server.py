"""A Postgres of the machine's own programs, in a folder of its own, on a Unix socket.

with postgres_server() as database:
    psycopg.connect(database)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sparkkafka.testing.kafka.process import LeashedProcess
from tests.support.waiting import wait_until

END_S = 30.0


def find_postgres() -> Path | None:
    """Return the folder of `postgres` and `initdb`: that of PATH, or the newest of Debian's."""
    found = [Path(shutil.which("postgres") or "")]
    found += sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: float(path.parts[-3]),
        reverse=True,
    )
    return next((path.parent for path in found if path.with_name("initdb").is_file()), None)


@contextmanager
def postgres_server(programs: Path, *, port: int | None = None) -> Iterator[str]:
    """Start a server and return psycopg's connection string. It has one user, who needs no
    password. With a port it listens at 127.0.0.1 too, and has logical decoding."""
    # Other folders may be too long for a Unix socket, and closed to the user of the server.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # Postgres refuses to run as root
        as_user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        shutil.chown(folder, "nobody", "nogroup")
    try:
        settings = ["--auth=trust", "--no-sync", "--username=shop", "--encoding=UTF8"]
        init = [str(programs / "initdb"), *settings, "-D", str(folder / "data")]
        subprocess.run([*as_user, *init], check=True, capture_output=True, timeout=120, cwd=folder)
        run = [str(programs / "postgres"), "-D", str(folder / "data"), "-k", str(folder)]
        run += ["-c", "fsync=off", "-c", f"listen_addresses={'127.0.0.1' if port else ''}"]
        if port is not None:
            run += ["-p", str(port), "-c", "wal_level=logical"]
        with (folder / "log").open("wb") as log:
            server = LeashedProcess([*as_user, *run], output=log, working_directory=folder)
        database = f"host={folder} port={port or 5432} dbname=postgres user=shop"
        try:
            wait_until(lambda: _is_up(database) or not server.running, "Postgres answers")
            assert server.running, (folder / "log").read_text()
            yield database
            server.terminate()
            server.wait(END_S)
        finally:
            server.close()
    finally:
        shutil.rmtree(folder)


def _is_up(database: str) -> bool:
    import psycopg  # here: each process of the tests imports all test modules

    try:
        with closing(psycopg.connect(database)):
            return True
    except psycopg.OperationalError:  # it starts
        return False
