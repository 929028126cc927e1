"""Makes the pictures of docs/cli.md: the command in a real terminal (tmux) with a real broker.

`python -m tests.tools.cli_pictures` replaces them; it needs tmux. The terminal's content becomes
SVG without fonts from other hosts.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sparkkafka.client import Admin, TopicPartition
from sparkkafka.testing.kafka.cluster import KafkaCluster
from tests.tools.writing import write_in_background

ROOT = Path(__file__).resolve().parents[2]
PICTURES = {
    "cli-lag": ("lag billing --watch", "q ends"),
    "cli-check": ("check --read orders --group billing --trigger 2h", "group billing ACLs"),
}
"""By the file's name: the command, and a text that is on the screen once the command is done."""
COLUMNS = 110


class Terminal:
    """A terminal in a tmux server of its own."""

    def __init__(self) -> None:
        self._tmux = ["tmux", "-L", "sparkkafka-pictures"]
        size = ["-x", str(COLUMNS), "-y", "20"]
        self._run("new-session", "-d", *size, "-s", "picture", "bash --norc")

    def _run(self, *arguments: str) -> str:
        """Run a command of tmux, and return its output."""
        run = subprocess.run(
            [*self._tmux, *arguments], capture_output=True, text=True, timeout=30, check=True
        )
        return run.stdout

    def type(self, text: str, *keys: str) -> None:
        self._run("send-keys", "-t", "picture", text, *keys)

    def wait_for(self, text: str) -> str:
        """Wait until the text is on the screen, and return the screen with its colours. Raises
        TimeoutError after a minute."""
        until_s = time.monotonic() + 60
        while text not in (screen := self._run("capture-pane", "-e", "-p", "-t", "picture")):
            if time.monotonic() > until_s:
                raise TimeoutError(f"{text!r} is not on the screen:\n{screen}")
            time.sleep(0.2)
        return screen

    def close(self) -> None:
        self._run("kill-server")


def records(_seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the records of one call, more than half of them for partition 5."""
    for number in range(66):
        yield {"value": b"x" * 100, "partition": min(number % 11, 5)}


def picture(screen: str, title: str) -> str:
    """Return a terminal's screen as SVG."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO())
    console.print(Text.from_ansi(screen.rstrip()), highlight=False)
    svg = console.export_svg(title=title, unique_id=re.sub(r"\W+", "-", title))
    # The docs load nothing from other hosts, so the browser takes any monospaced font.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)


def main() -> None:
    if shutil.which("tmux") is None:
        raise SystemExit("this needs tmux")
    with KafkaCluster(brokers=1) as kafka, tempfile.TemporaryDirectory() as folder:
        servers = kafka.bootstrap_servers
        kafka.create_topic("orders", partitions=6, configs={"retention.ms": "3600000"})
        (Path(folder) / "sparkkafka").mkdir()
        (Path(folder) / "sparkkafka" / "config.toml").write_text(
            f'default = "local"\n[profiles.local]\nbootstrap.servers = "{servers}"\n'
        )
        offsets = {TopicPartition("orders", number): 50 * number for number in range(6)}
        with Admin({"bootstrap.servers": servers}) as admin:
            admin.alter_consumer_group_offsets("billing", offsets).all()
        terminal = Terminal()
        try:
            with write_in_background(servers, records):
                time.sleep(10)  # so that the group lags
                terminal.type(
                    f"export PS1='$ ' PYTHONPATH={ROOT} XDG_CONFIG_HOME={folder}", "Enter"
                )
                terminal.type(f'sparkkafka() {{ {sys.executable} -m sparkkafka "$@"; }}', "Enter")
                for name, (command, until) in PICTURES.items():
                    terminal.type("clear", "Enter")
                    terminal.type(f"sparkkafka {command}", "Enter")
                    screen = terminal.wait_for(until)
                    # Keys that are sent while the shell starts are shown twice. --watch has a
                    # screen of its own, without the prompt.
                    screen = screen[max(0, screen.rfind("$ sparkkafka")) :]
                    svg = picture(
                        screen.replace(servers, "localhost:9092"), f"sparkkafka {command}"
                    )
                    (ROOT / "docs" / f"{name}.svg").write_text(svg, "utf-8")
                    terminal.type("C-c")
        finally:
            terminal.close()


if __name__ == "__main__":
    main()
