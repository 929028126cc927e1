"""The command's entry point: runs the arguments, returns an exit code, reports errors in one line.

Exit codes: 0 success, 1 something failed or a problem was found, 2 wrong use; 130 after Ctrl-C, 143
after SIGTERM, 129 after SIGHUP and 141 when the reader of our output is gone, as shells report
signals 2, 15, 1 and 13.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Final

from sparkkafka.cli.session import Session
from sparkkafka.cli.tables import PROGRAM, print_error
from sparkkafka.errors import KafkaError, OptionError, needs_extra

SUCCESS: Final = 0
FAILED: Final = 1
WRONG_USE: Final = 2
SIGNAL_BASE: Final = 128
"""A process that a signal ends has 128 + the signal's number as its exit code."""


CLEANUP_S: Final = 10.0
"""The time that a verb has to clean up after a signal. The exception that a signal handler raises
can also be lost, in code that swallows exceptions (an import, a finalizer)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: those of sys.argv) and return its exit code.

    Raises nothing.
    """
    if argv is None:  # the whole process is the command
        # Python's default of 700 new objects between searches for cycles costs a twentieth of the
        # time to the first record.
        gc.set_threshold(100_000)
        # OpenBLAS, which nothing here uses, starts a thread for each core when numpy is imported: a
        # tenth of that time.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _on_signal)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Escape characters that the terminal's encoding lacks, instead of failing at them.
            sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run_and_report(argv)
    except KeyboardInterrupt as interrupt:
        _start_new_line()
        # A verb adds notes that say what it had done by then.
        for note in getattr(interrupt, "__notes__", ()):
            print_error(note)
        if isinstance(interrupt, _Terminated):
            return SIGNAL_BASE + interrupt.number
        return SIGNAL_BASE + signal.SIGINT
    finally:
        if argv is None:
            # Python would search all loaded modules for cycles when it exits: a tenth of a second.
            gc.freeze()


def _run_and_report(argv: Sequence[str] | None) -> int:
    """Run the command; report every error but an interrupt, and return the exit code."""
    try:
        with needs_extra("the command needs Typer, which is not here", "cli"):
            import typer  # noqa: F401
    except ImportError as error:
        return _fail(str(error))
    session = Session()
    _open_closed_streams()
    logger, printer = logging.getLogger("sparkkafka"), _WarningPrinter(session)
    logger.addHandler(printer)
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv), session)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _discard_stdout()
        return SIGNAL_BASE + signal.SIGPIPE
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            # Python 3.11 wraps an exception of __set_name__, while a class is created.
            raise error.__cause__ from None
        try:
            sys.stdout.flush()
        except OSError:
            _discard_stdout()
        return _fail(_message(error), error, session)
    finally:
        logger.removeHandler(printer)


def _dispatch(arguments: list[str], session: Session) -> int:
    """Run kcat's arguments or a verb, and return the exit code."""
    from sparkkafka.cli import kcat
    from sparkkafka.cli.commands import COMPLETE_VARIABLE, complete, root_command

    if kcat.run_if_kcat(arguments, session):
        return SUCCESS
    command = root_command()
    if COMPLETE_VARIABLE in os.environ:
        complete(command, session)
    import typer

    try:
        with command.make_context(PROGRAM, arguments, obj=session) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort as end:
        # Ctrl-C, or the end of the input, instead of a response to a question.
        if isinstance(end.__context__, KeyboardInterrupt):
            raise end.__context__ from None
        _start_new_line()
        return _fail("nothing was done", end, session)
    except typer.TyperException as error:
        return _fail_usage(error, session)
    return SUCCESS


def _fail_usage(error: Exception, session: Session) -> int:
    """Print Typer's error about the arguments as one line. Return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stdout.write(f"{error}\n")
        return WRONG_USE
    if similar := getattr(error, "possibilities", None):
        error.possibilities = [name for name in similar if name != "--help"]  # type: ignore[attr-defined]
    name, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    # The options that do the same here as those of Kafka's tools and of kcat.
    replacements = {"--from-beginning": "--from", "--max-messages": "--count", "--offset": "--from"}
    replacements |= {"--topic": "TOPIC", "-n": "--count"}
    instead = replacements.get(name, "")
    if context is not None and any(instead.lower() in row.opts for row in context.command.params):
        error.possibilities = [instead]  # type: ignore[attr-defined]
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    if context is not None and message.startswith("Missing command"):
        message = f"Missing command: one of {', '.join(context.command.list_commands(context))}"
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    _fail(message.rstrip(".") + hint, error, session)
    return int(getattr(error, "exit_code", WRONG_USE))


def _message(error: Exception) -> str:
    """Return the line that reports an error. A bug's line has the type of the exception, too."""
    if isinstance(error, KafkaError):
        return _with_flags(str(error))
    if isinstance(error, OSError) and error.errno == errno.EBADF:
        return "stdin or stdout is closed (<&- or >&-): this verb needs it"
    if isinstance(error, OSError):
        path = f"{error.filename}: " if error.filename is not None else ""
        return f"{path}{error.strerror or error}"
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _with_flags(message: str) -> str:
    """Return the message with the command's flags in place of Spark's options for formats."""
    from sparkkafka.cli.format_flags import replace_options_by_flags  # needs Typer, and is slow

    return replace_options_by_flags(message)


def _fail(message: str, error: BaseException | None = None, session: Session | None = None) -> int:
    """Print `message` as one line on stderr; --debug prints the traceback of `error` before it.
    Return the exit code: WRONG_USE for an OptionError or without an exception, else FAILED."""
    if session is not None and session.debug and error is not None:
        with contextlib.suppress(OSError, ValueError):
            traceback.print_exception(error)
    print_error(message)
    return WRONG_USE if error is None or isinstance(error, OptionError) else FAILED


class _Terminated(KeyboardInterrupt):
    """SIGTERM (from `timeout` or a supervisor) or SIGHUP (the terminal was closed). They end a verb
    as Ctrl-C does, with exit codes of their own."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _on_signal(number: int, frame: object) -> None:
    """End the verb by an exception, and the process if that takes longer than CLEANUP_S."""
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process immediately
    timer = threading.Timer(CLEANUP_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
    raise _Terminated(number)


def _start_new_line() -> None:
    """End the line of a terminal on which a question or ^C stands."""
    if sys.stderr.isatty():
        sys.stderr.write("\n")


def _open_closed_streams() -> None:
    """Replace streams that the shell has closed (`>&-`), for which Python has None.

    A verb that uses stdin or stdout then gets the system's error, other verbs run. What is written
    to a closed stderr is discarded.
    """
    # stdin is opened for writing and stdout for reading: their use fails with EBADF (`_message`).
    for name, mode, flags in (
        ("stdin", "r", os.O_WRONLY),
        ("stdout", "w", os.O_RDONLY),
        ("stderr", "w", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _discard_stdout() -> None:
    """Discard what stdout still holds: Python flushes it when it exits, and would complain about
    the closed pipe or the full disk, with an exit code of its own."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


class _WarningPrinter(logging.Handler):
    """Prints the warnings of the package as lines of the command.

    Without a terminal and without --debug the client's warnings are left out: the error that ends
    the verb says the same.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(logging.WARNING)
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning on stderr, if it concerns the user of the command."""
        message = record.getMessage()
        # A warning about an option that Spark's plans show: the command has no plans.
        if "is shown by Spark's plans" in message and not self._session.debug:
            return
        # Without the client's warning about lost data, incomplete output would look complete.
        is_needed = (
            not record.name.startswith("sparkkafka.client")
            or "has been deleted and recreated" in message
        )
        if is_needed or self._session.debug or sys.stderr.isatty():
            print_error(f"{record.levelname.lower()}: {_with_flags(message)}")
