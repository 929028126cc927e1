"""The first read or write of a new Spark session: imports, workers and metadata are part of it.

`python tests/bench/first_rows.py FORMAT read|write SERVERS TOPIC` starts a session and prints, as
JSON, the seconds of one read or of a write of one row, and the count and sum of hashes of the rows.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a script has only its own folder

from sparkkafka.testing.kafka.jars import AVRO_JARS, CONNECTOR_JARS, find_jars
from tests.bench import checks

_LIMIT_S = 120.0


def in_new_session(
    name: str, verb: str, bootstrap_servers: str, topic: str
) -> tuple[float, list[int | None]]:
    """What the script prints, of a process of its own."""
    command = [sys.executable, __file__, name, verb, bootstrap_servers, topic]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_LIMIT_S)
    seconds, found = json.loads(done.stdout.splitlines()[-1])
    return seconds, found


def _measure(name: str, verb: str, bootstrap_servers: str, topic: str) -> None:
    from tests.bench import floor
    from tests.bench.spark_rows import open_spark

    jars = [*(find_jars(CONNECTOR_JARS) or ()), *(find_jars(AVRO_JARS) or ())]
    folder = Path(tempfile.mkdtemp(prefix="sparkkafka-bench-"))
    try:
        with open_spark(folder, jars, "local[2]") as spark:
            options: dict[str, str] = {}
            begin = time.monotonic()
            if name == floor.FLOOR_FORMAT:
                floor.register(spark)
                options = floor.floor_options(value_bytes=100, rows=1, partitions=1)
            if verb == "read":
                reader = spark.read.format(name).options(**options).option("subscribe", topic)
                frame = reader.option("kafka.bootstrap.servers", bootstrap_servers).load()
                rows = frame.collect()
            else:
                frame = spark.range(1).selectExpr("'the first row' as value")
                writer = frame.write.format(name).option("topic", topic).mode("append")
                writer.option("kafka.bootstrap.servers", bootstrap_servers).save()
                rows = []
            seconds = time.monotonic() - begin
            values = [bytes(row["value"]) for row in rows] if rows else [b"the first row"]
            print(json.dumps([seconds, checks.sums(values)]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _measure(*sys.argv[1:])
