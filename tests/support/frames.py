"""What a program sees that reports errors with each frame's variables (Sentry, rich, pytest -l)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

TESTS = str(Path(__file__).parents[1])


def variables_of(error: BaseException) -> str:
    """The variables of all frames of the error and of its causes, but for those of tests."""
    found = list(_lines(error))
    assert found, "the error has no frame but those of tests"
    return "\n".join(found)


def _lines(error: BaseException) -> Iterator[str]:
    yield f"{error!r}"
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if not frame.f_code.co_filename.startswith(TESTS):
            for name, value in frame.f_locals.items():
                yield f"{frame.f_code.co_qualname}: {name} = {value!r}"
    if error.__cause__ is not None:
        yield from _lines(error.__cause__)
    elif error.__context__ is not None and not error.__suppress_context__:
        yield from _lines(error.__context__)
