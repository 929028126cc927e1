"""What the functions say before a query runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sparkkafka.errors import OptionError
from sparkkafka.functions import to_avro, to_protobuf
from tests.schemas.small_registry import SmallRegistry, small_registry


@pytest.fixture
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as one:
        yield one


@pytest.mark.parametrize("function", [to_avro, to_protobuf])
@pytest.mark.parametrize("option", ["auto.register.schemas", "normalize.schemas"])
def test_what_is_registered_must_be_given(
    registry: SmallRegistry, function: Callable[..., object], option: str
) -> None:
    given = {"schema.registry.url": registry.url, option: "true"}
    with pytest.raises(OptionError, match=rf"{option}=true needs a schema, .* with type= "):
        function("v", given, subject="s")
    assert not registry.requests
