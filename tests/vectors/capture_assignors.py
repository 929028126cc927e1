"""Make `assignors.json` again: what Java's assignors decide, and its bytes. Not run by the tests.

    python tests/vectors/capture_assignors.py

Starts CaptureAssignors.java beside this file with Kafka's jars
(`python -m sparkkafka.testing.kafka.jars` fetches them; a JDK is needed, since Java compiles the
file as it starts) and asks it line by line.
The rounds of one group follow each other: what Java assigned in one is what the members have in
the next, while some join, leave, subscribe to something else, or come back with what they had
before. Only where the jars are comes from sparkkafka, so that the vectors know nothing of it.
"""

from __future__ import annotations

import datetime
import json
import random
import subprocess
from pathlib import Path
from typing import Any

from sparkkafka.testing.kafka.jars import ensure_jars, kafka_jars
from sparkkafka.testing.kafka.java import find_java

HERE = Path(__file__).parent
Round = dict[str, Any]


class Java:
    """CaptureAssignors.java, one line in, one line out."""

    def __init__(self) -> None:
        jars = ":".join(map(str, ensure_jars(kafka_jars())))
        self._process = subprocess.Popen(
            [
                str(find_java()),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=off",
                "-cp",
                jars,
                str(HERE / "CaptureAssignors.java"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> str:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        response = self._process.stdout.readline()
        if not response:
            raise SystemExit(f"Java ended at: {line}")
        return response.strip()

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


def words(items: list[str]) -> str:
    return ",".join(items) or "-"


def subscription(row: dict[str, Any]) -> str:
    return (
        f"{words(row['topics'])} {row.get('user_data') or '-'} {words(row.get('owned', []))} "
        f"{row.get('generation_id', -1)} {row.get('rack_id') or '-'}"
    )


def assign(
    java: Java,
    assignor: str,
    counts: dict[str, int],
    members: dict[str, Any],
    racks: dict[str, list[list[str]]] | None = None,
) -> Round:
    rows = [
        f"{member} {row.get('group_instance_id') or '-'} {subscription(row)}"
        for member, row in members.items()
    ]
    wanted = {topic for row in members.values() for topic in row["topics"]}
    # Java's assignors are only told of topics that somebody subscribes to.
    counts = {topic: count for topic, count in counts.items() if topic in wanted}
    topics = words([f"{topic}:{count}" for topic, count in counts.items()])
    near = words(
        [
            f"{topic}:{number}:{'+'.join(names)}"
            for topic in counts
            for number, names in enumerate((racks or {}).get(topic, ()))
        ]
    )
    response = java.ask("|".join([f"assign {assignor} {topics} {near}", *rows]))
    assigned = {}
    for part in response.split("|"):
        member, _, partitions = part.partition(" ")
        assigned[member] = [] if partitions == "-" else partitions.split(",")
    made = {"assignor": assignor, "partitions": counts, "members": members, "assigned": assigned}
    return made if racks is None else {**made, "racks": racks}


def member_id(chance: random.Random) -> str:
    return f"{chance.choice('abcxyzABC')}{chance.randrange(1000):03}"


def some_topics(chance: random.Random, names: list[str]) -> list[str]:
    return chance.sample(names, chance.randint(1, len(names)))


def plain_rounds(java: Java, chance: random.Random) -> list[Round]:
    """range and roundrobin remember nothing: unrelated rounds."""
    rounds = []
    for _ in range(50):
        names = [f"t{i}" for i in range(chance.randint(1, 5))]
        # The last one is subscribed to, but does not exist: the broker has no metadata of it.
        counts = {name: chance.randint(1, 9) for name in names[:-1] or names}
        members = {}
        for _ in range(chance.randint(1, 7)):
            row: dict[str, Any] = {"topics": some_topics(chance, names)}
            if chance.random() < 0.3:
                row["group_instance_id"] = f"instance-{member_id(chance)}"
            members[member_id(chance)] = row
        for assignor in ("range", "roundrobin"):
            rounds.append(assign(java, assignor, counts, members))
    return rounds


def group(java: Java, chance: random.Random, assignor: str, *, alike: bool) -> list[Round]:
    """Rounds of one group. `alike`: all members subscribe to the same topics."""
    names = [f"t{i}" for i in range(chance.randint(2, 4))]
    counts = {name: chance.randint(1, 8) for name in names}

    def newcomer() -> dict[str, Any]:
        topics = sorted(names if alike else some_topics(chance, names))
        return {"topics": topics, "had": [], "generation_id": -1}

    present = {member_id(chance): newcomer() for _ in range(chance.randint(2, 5))}
    away: dict[str, dict[str, Any]] = {}
    rounds = []
    for generation_id in range(1, 8):
        members: dict[str, Any] = {}
        for member, state in present.items():
            row = {"topics": state["topics"], "generation_id": state["generation_id"]}
            if assignor == "cooperative-sticky":
                row["owned"] = state["had"]
            elif state["generation_id"] >= 0:
                had = words(state["had"])
                row["user_data"] = java.ask(f"user-data sticky {had} {state['generation_id']}")
            members[member] = row
        made = assign(java, assignor, counts, members)
        rounds.append(made)
        for member, state in present.items():
            state.update(had=made["assigned"][member], generation_id=generation_id)
        for _ in range(chance.randint(0, 2)):
            change = chance.random()
            if change < 0.35:
                present[member_id(chance)] = newcomer()
            elif change < 0.6 and len(present) > 1:
                member = chance.choice(sorted(present))
                away[member] = present.pop(member)
            elif change < 0.75 and away:
                # Knows nothing of what happened since: claims what others have by now.
                member = chance.choice(sorted(away))
                present[member] = away.pop(member)
            elif change < 0.85:
                counts[chance.choice(names)] += chance.randint(1, 3)
            elif not alike:
                member = chance.choice(sorted(present))
                present[member]["topics"] = sorted(some_topics(chance, names))
    return rounds


def conflicts(java: Java) -> list[Round]:
    """Two members claim one partition: in one generation, and in two."""
    rounds = []
    for mine, others in ((5, 5), (5, 4), (4, 5)):
        claims = {"a": (["t0:0", "t0:1"], mine), "b": (["t0:1", "t0:2"], others)}
        for assignor in ("sticky", "cooperative-sticky"):
            members: dict[str, Any] = {}
            for member, (had, generation_id) in claims.items():
                row: dict[str, Any] = {"topics": ["t0"], "generation_id": generation_id}
                if assignor == "sticky":
                    row["user_data"] = java.ask(f"user-data sticky {words(had)} {generation_id}")
                else:
                    row["owned"] = had
                members[member] = row
            rounds.append(assign(java, assignor, {"t0": 4}, members))
    return rounds


def rack_rounds(java: Java, chance: random.Random, assignor: str) -> list[Round]:
    """Members and replicas in racks (KIP-881): a group's first round, and more that go on."""
    names = [f"t{i}" for i in range(chance.randint(1, 3))]
    same = chance.randint(2, 9)
    counts = {name: chance.choice([same, same, chance.randint(1, 9)]) for name in names}
    replicas = chance.randint(1, 3)
    racks = {
        name: [sorted(chance.sample("abc", replicas)) for _ in range(count)]
        for name, count in counts.items()
    }

    def newcomer() -> dict[str, Any]:
        row = {"topics": names, "had": [], "generation_id": -1}
        if assignor == "range":
            row["topics"] = sorted(some_topics(chance, names))
        if chance.random() < 0.9:
            row["rack_id"] = chance.choice("aabcd")
        return row

    present = {member_id(chance): newcomer() for _ in range(chance.randint(1, 6))}
    rounds = []
    for generation_id in range(1, 2 if assignor == "range" else 4):
        members: dict[str, Any] = {}
        for member, state in present.items():
            row = {key: value for key, value in state.items() if key != "had"}
            if assignor == "cooperative-sticky":
                row["owned"] = state["had"]
            elif state["generation_id"] >= 0:
                had = words(state["had"])
                row["user_data"] = java.ask(f"user-data sticky {had} {state['generation_id']}")
            members[member] = row
        made = assign(java, assignor, counts, members, racks)
        rounds.append(made)
        for member, state in present.items():
            state.update(had=made["assigned"][member], generation_id=generation_id)
        if chance.random() < 0.5 and len(present) > 1:
            del present[chance.choice(sorted(present))]
        else:
            present[member_id(chance)] = newcomer()
    return rounds


def codec_vectors(java: Java) -> dict[str, Any]:
    subscriptions = []
    cases: list[dict[str, Any]] = [
        {"topics": []},
        {"topics": ["b", "a", "c"]},
        {"topics": ["t"], "user_data": "00ff"},
        {"topics": ["t"], "owned": ["u:2", "t:1", "u:0", "t:0"], "generation_id": 7},
        {"topics": ["t"], "owned": ["t:0"], "generation_id": 0, "rack_id": "rack-1"},
    ]
    for row in cases:
        for version in range(4):
            encoded = java.ask(f"subscription {subscription(row)} {version}")
            subscriptions.append({**row, "version": version, "bytes": encoded})
    assignments = []
    for partitions, user_data in (([], "-"), (["t:1", "u:0", "t:0"], "-"), (["t:5"], "01")):
        for version in range(4):
            encoded = java.ask(f"assignment {words(partitions)} {user_data} {version}")
            row = {"partitions": partitions, "version": version, "bytes": encoded}
            if user_data != "-":
                row["user_data"] = user_data
            assignments.append(row)
    user_data_rows = []
    for assignor in ("sticky", "cooperative-sticky"):
        for had, generation_id in (([], -1), ([], 3), (["t:0", "t:2", "u:1"], 4)):
            encoded = java.ask(f"user-data {assignor} {words(had)} {generation_id}")
            user_data_rows.append(
                {
                    "assignor": assignor,
                    "had": had,
                    "generation_id": generation_id,
                    "bytes": encoded.replace("-", ""),
                }
            )
    return {
        "subscriptions": subscriptions,
        "assignments": assignments,
        "user_data": user_data_rows,
    }


def main() -> None:
    chance = random.Random(431)
    java = Java()
    found = {
        "origin": f"kafka-clients {java.ask('version')}, its classes called directly",
        "date": datetime.date.today().isoformat(),
        **codec_vectors(java),
        "rounds": plain_rounds(java, chance) + conflicts(java),
    }
    for assignor in ("sticky", "cooperative-sticky"):
        for alike in (True, False):
            for _ in range(6):
                found["rounds"] += group(java, chance, assignor, alike=alike)
    chance = random.Random(881)
    found["rack_rounds"] = [
        made
        for assignor in ("range", "sticky", "cooperative-sticky")
        for _ in range(60 if assignor == "range" else 25)
        for made in rack_rounds(java, chance, assignor)
    ]
    java.close()
    # One vector a line, so that a new capture's difference can be read.
    parts = []
    for name, value in found.items():
        if isinstance(value, list):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            parts.append(f'"{name}":[\n{rows}\n]')
        else:
            parts.append(f'"{name}":{json.dumps(value)}')
    (HERE / "assignors.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
