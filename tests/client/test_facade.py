"""`sparkkafka.client` has its classes by name, and loads only those that are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sparkkafka.client
from sparkkafka.client.aio import AsyncProducer


def test_every_name_can_be_had() -> None:
    assert sorted(sparkkafka.client._MODULE_OF) == sorted(sparkkafka.client.__all__)
    for name in sparkkafka.client.__all__:
        assert getattr(sparkkafka.client, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Consumr'"):
        sparkkafka.client.Consumr  # noqa: B018
    assert not hasattr(sparkkafka.client, "AsyncConsumr")
    assert sparkkafka.client.AsyncProducer is AsyncProducer


@pytest.mark.slow
def test_names_can_be_completed_before_they_are_used() -> None:
    program = (
        "import rlcompleter, sparkkafka, sparkkafka.client, sparkkafka.protocol.messages\n"
        "complete = rlcompleter.Completer(globals()).complete\n"
        "print(set(sparkkafka.__all__) <= set(dir(sparkkafka)))\n"
        "print(set(sparkkafka.client.__all__) <= set(dir(sparkkafka.client)))\n"
        "print(complete('sparkkafka.client.Prod', 0))\n"
        "print(complete('sparkkafka.protocol.messages.FindCoordinatorReq', 0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [
        "True",
        "True",
        "sparkkafka.client.Producer(",
        "sparkkafka.protocol.messages.FindCoordinatorRequest(",
    ]


def test_neither_pyspark_nor_what_is_not_asked_for_is_loaded() -> None:
    program = (
        "import sys\n"
        "from sparkkafka.client import TopicPartition\n"
        "print([m for m in sys.modules if m == 'pyspark' or m.startswith('sparkkafka.client.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "['sparkkafka.client.values']"
