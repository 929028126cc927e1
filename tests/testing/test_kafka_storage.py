"""Formatting storage beside other threads that do the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from sparkkafka.testing.kafka import storage


@dataclass
class Broker:
    id: int
    data: Path
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.data.with_suffix(".properties")


class Tool:
    def wait(self, seconds: float) -> int:
        return 0

    def close(self) -> None:
        pass


def test_features_that_another_thread_clears_meanwhile_are_still_written(tmp_path, monkeypatch):
    kept: dict[storage.Configuration, storage.Files] = {}
    monkeypatch.setattr(storage, "known_features", kept)

    def run(broker, arguments):
        broker.data.mkdir()
        (broker.data / "bootstrap.checkpoint").write_bytes(b"features")
        kept.clear()
        return Tool()

    first = Broker(0, tmp_path / "0", {"a": "1"})
    storage.format_storage([first], "4.0.0", run, lambda _: "")
    known = Broker(1, tmp_path / "1", {"a": "1"})
    new = Broker(2, tmp_path / "2", {"a": "2"})
    storage.format_storage([known, new], "4.0.0", run, lambda _: "")
    assert (known.data / "bootstrap.checkpoint").read_bytes() == b"features"
