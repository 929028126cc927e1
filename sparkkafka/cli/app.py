"""The command's entry: arguments in, an exit code out, every error one line on stderr.

Exit codes: 0 well, 1 something failed or was found, 2 wrong use; 130 after Ctrl-C, 143 after
SIGTERM, 129 after SIGHUP and 141 when the reader of our output has gone, as shells count the
signals 2, 15, 1 and 13.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Final

from sparkkafka.cli.format_flags import command_words
from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import PROGRAM, print_error
from sparkkafka.errors import KafkaError, OptionError
from sparkkafka.extras import needs_extra

COMPLETION_VARIABLE: Final = "_SPARKKAFKA_COMPLETE"
WELL: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
INTERRUPTED: Final = 130
CLOSED_PIPE: Final = 141
OF_SIGNALS: Final = 128

ENDING_S: Final = 10.0
"""The time for what a verb has to clean up after a signal. An exception out of a signal's handler
can also be lost, in code that swallows what it raises (the import of a module, a finalizer)."""

_GARBAGE_COUNT: Final = 100_000
"""New objects before Python looks for cycles among them: with its 700 that is a twentieth of the
time to the first record."""

_OF_DATA: Final = "has been deleted and recreated"
"""Of the client's warnings the one without which an output could pass for whole."""

_WORDS_OF_TYPES: Final = {
    "Input should be a valid integer, unable to parse string as an integer": "it is a whole number",
    "Input should be a valid number, unable to parse string as a number": "it is a number",
}
"""What Typer's checks say, for people."""

_OF_SPARK: Final = "is shown by Spark's plans"
"""A warning about an option that Spark does not hide: a command shows none."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (sys.argv's, if None). Returns the exit code, and raises
    nothing."""
    if argv is None:  # the process is ours
        gc.set_threshold(_GARBAGE_COUNT)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
                signal.signal(number, _on_signal)
    try:
        return _main(argv)
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)


def _main(argv: Sequence[str] | None) -> int:
    try:
        with needs_extra("the command needs Typer, which is not here", "cli"):
            import typer  # noqa: F401
    except ImportError as error:
        return _fail(str(error))
    session = Session()
    _open_closed_streams()
    try:
        with _warnings(session):
            code = _run(list(sys.argv[1:] if argv is None else argv), session)
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        _close_stdout()
        return CLOSED_PIPE
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11, while a class is made
            raise error.__cause__ from None
        try:
            sys.stdout.flush()
        except OSError:
            _close_stdout()
        return _fail(_words(error), error, session)


def _run(arguments: list[str], session: Session) -> int:
    from sparkkafka.cli import kcat
    from sparkkafka.cli.commands import root_command

    if kcat.is_kcat(arguments):
        kcat.run(arguments, session)
        return WELL

    kcat.check_mode(arguments)
    command = root_command()
    if COMPLETION_VARIABLE in os.environ:
        # A shell that asks for completions: Typer answers and ends the process.
        command.main(arguments, prog_name=PROGRAM, complete_var=COMPLETION_VARIABLE)
    import typer

    try:
        with command.make_context(PROGRAM, arguments, obj=session) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort as end:
        # A question was answered by Ctrl-C, or by the end of the input.
        if isinstance(end.__context__, KeyboardInterrupt):
            raise end.__context__ from None
        _end_line()
        return _fail("nothing was done", end, session)
    except typer.TyperException as error:
        return _wrong_use(error, session)
    return WELL


def _wrong_use(error: Exception, session: Session) -> int:
    """What Typer says of arguments, as one line."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{error}\n")
        return WRONG_USE
    words = error.format_message() if hasattr(error, "format_message") else str(error)
    for theirs, ours in _WORDS_OF_TYPES.items():
        words = words.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    where = f" (see {context.command_path} --help)" if context is not None else ""
    _fail(words.rstrip(".") + where, error, session)
    return int(getattr(error, "exit_code", WRONG_USE))


def _words(error: Exception) -> str:
    """The error for a person. What is neither ours nor the system's is a bug: its type helps."""
    if isinstance(error, KafkaError):
        return command_words(str(error))
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "stdin or stdout is closed (<&- or >&-): this verb needs it"
    if isinstance(error, OSError):
        path = f"{error.filename}: " if error.filename is not None else ""
        return f"{path}{error.strerror or error}"
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _fail(words: str, error: BaseException | None = None, session: Session | None = None) -> int:
    """One line on stderr; with --debug the traceback before it."""
    if session is not None and session.debug and error is not None:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
    print_error(words)
    return WRONG_USE if error is None or isinstance(error, OptionError) else FAILED


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    """What a verb has noted of what it had done by then, below the terminal's ^C."""
    _end_line()
    for words in getattr(interrupt, "__notes__", ()):
        print_error(words)
    return interrupt.code if isinstance(interrupt, _Terminated) else INTERRUPTED


class _Terminated(KeyboardInterrupt):
    """SIGTERM, of `timeout` or a supervisor, or SIGHUP, of a terminal that is closed: they end a
    verb as Ctrl-C does, with codes of their own."""

    code = OF_SIGNALS + signal.SIGTERM


def _on_signal(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
    timer = threading.Timer(ENDING_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
    terminated = _Terminated()
    terminated.code = OF_SIGNALS + number
    raise terminated


def _end_line() -> None:
    """On a terminal the cursor stands behind a question, or ^C."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")


def _open_closed_streams() -> None:
    """Python has None for a stream that the shell has closed (`>&-`). Here whoever uses stdin or
    stdout gets the system's error, and who does not goes on; what stderr is told goes nowhere."""
    for name, mode, flags in (
        ("stdin", "r", os.O_WRONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _close_stdout() -> None:
    """Python flushes stdout once more when it ends, and would complain about the closed pipe (or a
    disk that is full), with an exit code of its own."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _warnings(session: Session) -> Iterator[None]:
    """Warnings of the package as lines of the command while it runs: all of them for a person at a
    terminal or with --debug, else none of the client's, whose error says the same at the end."""
    handler = _Lines(session)
    logger = logging.getLogger("sparkkafka")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Lines(logging.Handler):
    def __init__(self, session: Session) -> None:
        super().__init__(logging.WARNING)
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        words = record.getMessage()
        if _OF_SPARK in words and not self._session.debug:
            return
        ours = not record.name.startswith("sparkkafka.client") or _OF_DATA in words
        if ours or self._session.debug or sys.stderr.isatty():
            print_error(f"{record.levelname.lower()}: {command_words(words)}")
