"""How messages name fields."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparkkafka.errors import OptionError
from sparkkafka.schemas.schema_errors import MAX_PATH, check_distinct, child_path, label, names_hint


def test_paths() -> None:
    assert (label(""), label("a.b[]")) == ("the value", "field a.b[]")
    assert (child_path("", "a"), child_path("a", "b")) == ("a", "a.b")
    assert len(child_path("a" * 1000, "b")) <= MAX_PATH


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("prise", ["id", "price"], "did you mean price? It has id, price"),
        ("ID", ["id", "price"], "did you mean id? It has id, price"),
        ("x", ["id", "price"], "it has id, price"),
        ("x", [], "it has none"),
        ("x", [f"f{n}" for n in range(30)], "it has f0, f1, "),
        ("x", ["n" * 1000], "it has nnn"),
    ],
)
def test_hints_at_known_names(name: str, known: list[str], hint: str) -> None:
    found = names_hint(name, known)
    assert found.startswith(hint)
    assert len(found) < 400


def test_a_name_that_appears_twice() -> None:
    check_distinct(pa.struct([("a", pa.int8()), ("A", pa.int8())]), "s")
    with pytest.raises(OptionError, match=r"^field s\.a appears twice in the column$"):
        check_distinct(pa.struct([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8())]), "s")
