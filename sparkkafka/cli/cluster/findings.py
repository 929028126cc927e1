"""What `check` has found, one line each, and how it is shown."""

from __future__ import annotations

from typing import Any, NamedTuple

from sparkkafka.cli.tables import printable

WELL = "ok"
WRONG = "!!"
UNKNOWN = "??"


class Finding(NamedTuple):
    """`mark`: WELL; WRONG, where `words` say what to do; UNKNOWN, where nobody would tell, and the
    words say what to grant. `about` is what was looked at."""

    mark: str
    about: str
    words: str

    @property
    def line(self) -> str:
        return printable(f"{self.mark}  {self.about}: {' '.join(self.words.split())}")

    @property
    def document(self) -> dict[str, Any]:
        return self._asdict()


def well(about: str, words: str) -> Finding:
    return Finding(WELL, about, words)


def wrong(about: str, words: object) -> Finding:
    return Finding(WRONG, about, str(words))


def unknown(about: str, words: object) -> Finding:
    return Finding(UNKNOWN, about, str(words))
