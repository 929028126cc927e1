"""`python -m sparkkafka.testing.kafka.broker`: real brokers until Ctrl-C, to try things."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from sparkkafka.config.security.references import parse_properties
from sparkkafka.errors import KafkaError
from sparkkafka.testing.kafka.cluster import KafkaCluster
from sparkkafka.testing.kafka.java import find_java, say
from sparkkafka.testing.kafka.ports import ReservedPorts
from sparkkafka.testing.kafka.process import UnavailableError
from sparkkafka.testing.kafka.properties import MANAGED_PROPERTIES

USUAL_PORT = 9092


def read_properties(path: Path) -> dict[str, str]:
    """Return a broker's settings from a file, without those that `KafkaCluster` sets itself."""
    properties = parse_properties(path.read_text())
    return {name: properties[name] for name in properties if name not in MANAGED_PROPERTIES}


def raise_on_sigterm() -> None:
    """Let SIGTERM end the program like Ctrl-C does, through its `finally` blocks."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def record_interrupts() -> list[int]:
    """Return a list to which each SIGINT and SIGTERM from now on is added, in place of an
    exception."""
    found: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: found.append(number))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until Ctrl-C or SIGTERM, or until a broker dies (status 1)."""
    parser = argparse.ArgumentParser(
        prog="python -m sparkkafka.testing.kafka.broker", description=__doc__
    )
    parser.add_argument("--brokers", type=int, default=1, help="how many (1)")
    parser.add_argument(
        "--port", type=int, help=f"of the first broker ({USUAL_PORT} if free, else any free one)"
    )
    parser.add_argument(
        "--topics", default="orders,shouted", help='made at the start (orders,shouted); "" for none'
    )
    parser.add_argument("--partitions", type=int, default=1, help="of each topic (1)")
    parser.add_argument("--properties", type=Path, help="file with broker properties")
    options = parser.parse_args(arguments)
    raise_on_sigterm()
    try:
        properties = read_properties(options.properties) if options.properties else {}
        find_java(install=True)
        say("starting Kafka")
        cluster = KafkaCluster(
            options.brokers, properties, client_ports=[free_port(options.port, USUAL_PORT)], say=say
        )
        with cluster:
            topics = [name.strip() for name in options.topics.split(",") if name.strip()]
            for topic in topics:
                cluster.create_topic(topic, options.partitions, min(options.brokers, 3))
            say(instructions(cluster.bootstrap_servers, topics))
            # Interrupt only between two checks: inside one it could leave a lock taken.
            interrupted = record_interrupts()
            while all(map(cluster.is_running, cluster.broker_ids)):
                time.sleep(0.2)
                if interrupted:
                    raise KeyboardInterrupt
            for broker_id in cluster.broker_ids:
                if not cluster.is_running(broker_id):
                    say(f"broker {broker_id} ended:\n{cluster.log_tail(broker_id)}")
            return 1
    except KeyboardInterrupt:
        say("\nstopped, and its data removed")
        return 0
    except (KafkaError, OSError, ValueError) as error:
        say(str(error))
        return 1


def free_port(port: int | None, usual: int) -> int:
    """Return `port`, or if it is None the port `usual` or, if that is in use, any free one."""
    if port is not None:
        return port
    try:
        with ReservedPorts() as ports:
            return ports.take(usual)
    except UnavailableError:
        say(f"port {usual} is in use: taking another one")
        with ReservedPorts() as ports:
            return ports.take()


def _topics_text(topics: Sequence[str]) -> str:
    return f"these topics: {', '.join(topics)}" if topics else "no topics yet"


def instructions(bootstrap_servers: str, topics: Sequence[str]) -> str:
    """Return the text that says how to use the brokers."""
    topic = topics[0] if topics else "orders"
    create = "" if topics else '.option("createTopic", "true")'
    servers = f'.option("kafka.bootstrap.servers", "{bootstrap_servers}")'
    pyspark = Path(sys.executable).with_name("pyspark")
    return f"""
Kafka answers at {bootstrap_servers} and has {_topics_text(topics)}.
Ctrl-C stops it and removes its data.

Start Spark in another terminal:

  PYSPARK_PYTHON={sys.executable} {pyspark}

and paste a line that writes, then a line that reads:

  spark.range(10).selectExpr("cast(id as string) as value").write.format("pykafka"){servers}\
.option("topic", "{topic}"){create}.mode("append").save()
  spark.read.format("pykafka"){servers}.option("subscribe", "{topic}").load().show()
"""


if __name__ == "__main__":
    sys.exit(main())
