"""What calls on several items return: each item has its own value or its own error."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from sparkkafka.errors import KafkaError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")


class Results(Mapping[K, V]):
    """The outcome of each item of one call, in the order in which the items were given.

        results = admin.delete_topics(["a", "b"])
        results.all()          # {"a": None, "b": None}, or raises the first error
        results["a"]           # the value of one item, or raises its error
        results.errors         # {item: error} of those that failed
        results.values_by_item # {item: value} of those that did not

    Nothing is raised before one of these is looked at: after a call that changes something,
    `all()` is the safe thing to say. `items()` and `values()` go through `[]`, so they raise at
    the first item that failed. `in`, `len` and iteration count all items.
    """

    def __init__(self, outcome: Mapping[K, V | KafkaError]) -> None:
        self._outcome = dict(outcome)

    def __getitem__(self, item: K) -> V:
        found = self._outcome[item]
        if isinstance(found, KafkaError):
            raise found
        return found

    def __iter__(self) -> Iterator[K]:
        return iter(self._outcome)

    def __len__(self) -> int:
        return len(self._outcome)

    def __contains__(self, item: object) -> bool:
        return item in self._outcome

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Results):
            return self._outcome == other._outcome
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Results({self._outcome!r})"

    @property
    def errors(self) -> dict[K, KafkaError]:
        """The error of each item that failed."""
        return {
            item: found for item, found in self._outcome.items() if isinstance(found, KafkaError)
        }

    @property
    def values_by_item(self) -> dict[K, V]:
        """The value of each item that did not fail."""
        return {
            item: found
            for item, found in self._outcome.items()
            if not isinstance(found, KafkaError)
        }

    def all(self) -> dict[K, V]:
        """Every item's value. Raises the error of the first item that failed."""
        return {item: self[item] for item in self._outcome}


class Listing(Sequence[T], Generic[T]):
    """What all brokers together listed. Each lists only what it coordinates itself.

        for group in admin.list_consumer_groups(): ...   # of the brokers that answered
        listing.errors                                   # {broker's node id: error} of the others
        listing.all()                                    # a list, or raises the first error

    A broker that failed is also a warning in the log, since the list is not whole then.
    """

    def __init__(self, found: Sequence[T], errors: Mapping[int, KafkaError]) -> None:
        self._found = tuple(found)
        self.errors: dict[int, KafkaError] = dict(errors)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        errors = f", errors={self.errors!r}" if self.errors else ""
        return f"Listing({list(self._found)!r}{errors})"

    def all(self) -> list[T]:
        """Everything that was listed. Raises the error of the first broker that failed."""
        for error in self.errors.values():
            raise error
        return list(self._found)
