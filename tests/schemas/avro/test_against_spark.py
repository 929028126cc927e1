"""Types, values and made schemas, held against Spark's own Avro.

Left out: times of day and timestamps in nanoseconds, for which Spark 4.2 has types of its own, and
records in unions of several types, which Spark itself cannot give to Arrow.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_type

from sparkkafka.schemas.avro import format as avro
from sparkkafka.testing.kafka.jars import AVRO_JARS, find_jars
from tests.schemas.avro.avro_cases import decode, plain, schema, schemas, values, written

ROWS = 4

TYPES = [
    pa.struct(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("price", pa.decimal128(10, 2), nullable=False),
            ("small", pa.int16()),
            (
                "parts",
                pa.list_(
                    pa.field(
                        "element",
                        pa.struct(
                            [
                                ("day", pa.date32()),
                                (
                                    "more",
                                    pa.map_(
                                        pa.string(),
                                        pa.struct(
                                            [
                                                ("d", pa.decimal128(38, 3)),
                                                ("wait", pa.duration("us")),
                                                ("raw", pa.binary()),
                                                ("local", pa.timestamp("us")),
                                                ("nothing", pa.null()),
                                            ]
                                        ),
                                    ),
                                ),
                            ]
                        ),
                        nullable=False,
                    )
                ),
            ),
        ]
    )
]


def several(definition: Any) -> bool:
    """Is there a record in a union of several types? Or a type that Spark 4.2 has and we do not."""
    if isinstance(definition, list):
        rest = [each for each in definition if each != "null"]
        kinds = [each if isinstance(each, str) else each["type"] for each in rest]
        return (len(rest) > 1 and "record" in kinds) or any(map(several, rest))
    if isinstance(definition, dict):
        logical = definition.get("logicalType", "")
        inner = [definition.get("type"), definition.get("items"), definition.get("values")]
        return (
            logical.startswith("time-")
            or logical.endswith("-nanos")
            or any(map(several, [*inner, *definition.get("fields", [])]))
        )
    return False


def tables(count: int) -> list[tuple[Any, list[bytes]]]:
    found: list[tuple[Any, list[bytes]]] = []

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        definition = data.draw(schemas(nulls=False))
        assume(not several(definition))
        rows = data.draw(st.lists(values(definition), min_size=ROWS, max_size=ROWS))
        found.append((definition, [written(definition, row) for row in rows]))

    collect()
    return found


@pytest.mark.jvm
@pytest.mark.spark
def test_spark_has_the_same_types_values_and_schemas(tmp_path: Path) -> None:
    jars = find_jars(AVRO_JARS)
    if jars is None:
        pytest.skip("spark-avro is not there: `python -m sparkkafka.testing.kafka.jars avro`")
    cases = tables(40)
    questions = tmp_path / "questions"
    answers = tmp_path / "answers"
    names = [("Order", "com.example"), ("Order", "")]
    questions.write_bytes(
        pickle.dumps(
            (
                [(json.dumps(definition), payloads) for definition, payloads in cases],
                [
                    (from_arrow_type(kind).json(), name, space)
                    for kind in TYPES
                    for name, space in names
                ],
            )
        )
    )
    command = [sys.executable, "-m", "tests.schemas.avro.spark_oracle", str(jars[0])]
    done = subprocess.run(
        [*command, str(questions), str(answers)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    types, columns, made = pickle.loads(answers.read_bytes())
    for (definition, payloads), kind, column in zip(cases, types, columns, strict=True):
        assert avro.arrow_type(schema(definition)) == kind, definition
        assert plain(decode(definition, payloads).values) == plain(column), definition
    own = [
        json.loads(avro.schema_of(kind, f"{space}.{name}".strip(".")).text)
        for kind in TYPES
        for name, space in names
    ]
    assert [unified(each) for each in own] == [unified(each) for each in made]


def unified(definition: Any) -> Any:
    """A name with its namespace in one: both may be written in two ways."""
    if isinstance(definition, list):
        return [unified(each) for each in definition]
    if not isinstance(definition, dict):
        return definition
    result = {key: unified(value) for key, value in definition.items() if key != "namespace"}
    if definition.get("namespace") and definition.get("type") in ("record", "fixed"):
        result["name"] = f"{definition['namespace']}.{definition['name']}"
    return result
