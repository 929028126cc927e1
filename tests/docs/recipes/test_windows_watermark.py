"""The recipe's windows: each is written once, and clicks of a closed one are dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import run

PAGE = "docs/recipes/windows-watermark.md"


@pytest.mark.real
@pytest.mark.spark
def test_windows_watermark(spark: Any, kafka_cluster: Any, capsys: Any, tmp_path: Path) -> None:
    # What is printed is compared with the page: the dropped rows and the one window.
    names, _ = run(PAGE, capsys, kafka_cluster.bootstrap_servers, folder=str(tmp_path))
    (window,) = names["windows"].collect()
    assert (window.key, window.value) == (b"home", b'{"start":"10:00","count":2}')
