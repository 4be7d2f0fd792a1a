"""How a command fails: one message on stderr, a document on stdout with --json, and the exit code.

SIGTERM and SIGHUP (a scheduler's preemption, a closed terminal) end a command as Ctrl-C does.
"""

import contextlib
import errno
import json
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from zbench.cli import console, streams
from zbench.errors import ExitCode, ZbenchError
from zbench.masking import masked

_TRIAL_COMMANDS = {"sweep", "run", "tune"}
_UNMAPPED = re.compile("failed to map segment|cannot allocate memory", re.IGNORECASE)
_GO_ON = "finished repeats are on disk; continue a sweep with --resume"
_BLAS_BYTES = 256 << 20  # numpy, scipy.special and scipy.stats took 243 MB with one thread
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_BROKEN_PIPE = 141  # what a shell reports of a program that died of SIGPIPE


@contextlib.contextmanager
def shown_to_the_user(arguments: Sequence[str]) -> Iterator[None]:
    """Turn every exception of the body into a message and SystemExit; a traceback only with -v."""
    try:
        yield
    except typer.Exit as request:
        sys.exit(request.exit_code)
    except streams.OutputError as error:
        console.error(str(error))
        streams.discard_stdout()
        sys.exit(int(error.exit_code))
    except ZbenchError as error:
        _fail(arguments, type(error).__name__, str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort) as error:
        _fail(arguments, "Interrupted", str(error) or "interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        streams.discard_stdout()
        sys.exit(_BROKEN_PIPE)
    except Exception as error:
        if (lacking := _shortage(error)) is not None:
            _fail(arguments, "ShortageError", lacking, ExitCode.USAGE)
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            _fail_usage(arguments, error)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            message = f"file name too long: {error.filename}; give a shorter path or name"
            _fail(arguments, "UsageError", message, ExitCode.USAGE)
        _fail_internal(arguments, error)


def _shortage(error: BaseException) -> str | None:
    """Return which resource of the machine was exhausted, and the remedy; None for an error of another kind.

    A failed import may be caused by a memory error, or only mention one in its text.
    """
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and len(chain) < 20:
        chain.append(at)
        at = at.__cause__ or at.__context__
    for one in chain:
        no_memory = isinstance(one, MemoryError) or getattr(one, "errno", None) == errno.ENOMEM
        if no_memory or (isinstance(one, ImportError) and _UNMAPPED.search(str(one))):
            return f"out of memory: free some memory, or raise the limit (ulimit -v); {_GO_ON}"
        if getattr(one, "errno", None) in (errno.EMFILE, errno.ENFILE):
            return f"too many open files: close some files, or raise the limit (ulimit -n); {_GO_ON}"
        if getattr(one, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
            return f"no space left on the disk ({one}): free some space; {_GO_ON}"
    return None


class RoomForBlas:
    """Refuses to import numpy and scipy where memory is limited and too little is left.

    Their OpenBLAS then ends the process with status 1 or by SIGINT, or hangs, and none of it can be caught.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise MemoryError instead of looking for the module."""
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if name in ("numpy", "scipy") and limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            if limit - pages * resource.getpagesize() < _BLAS_BYTES:
                raise MemoryError(name)


@contextlib.contextmanager
def with_room_for_blas() -> Iterator[None]:
    """Guard the imports of the body; OpenBLAS of one thread needs less memory, and is enough here."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    guard: Any = RoomForBlas()
    sys.meta_path.insert(0, guard)
    try:
        yield
    finally:
        sys.meta_path.remove(guard)


def _fail(arguments: Sequence[str], kind: str, message: str, code: int) -> None:
    try:
        console.error(message)
        _print_document(arguments, kind, message, code)
    except MemoryError:  # what prints cannot be loaded any more
        os.write(2, f"error: {message}\n".encode(errors="backslashreplace"))
    sys.exit(int(code))


def _fail_usage(arguments: Sequence[str], error: Any) -> None:
    """Show an error of the option parser: a wrong flag, a missing argument, or no argument at all."""
    message = error.format_message().replace("Input should", "it should").replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.exit(int(ExitCode.USAGE))  # the help is on stdout already
    hint = f" (see `{context.command_path} --help`)" if context is not None else ""
    _fail(arguments, "UsageError", message + hint, ExitCode.USAGE)


def _fail_internal(arguments: Sequence[str], error: Exception) -> None:
    text = "".join(traceback.format_exception(error))
    if console.state.verbose or {"-v", "--verbose"} & set(arguments):
        print(text, file=sys.stderr)
        where = ""
    else:
        where = _written(text)
    message = f"internal error: {type(error).__name__}: {error}{where}"
    _fail(arguments, "InternalError", message, ExitCode.INTERNAL)


def _written(trace: str) -> str:
    """Write a traceback to a file; return the end of a message that says where it is, or how to see it."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="zbench-traceback-", suffix=".txt", delete=False
        ) as file:
            file.write(masked(trace))
    except OSError:
        return "; -v shows the traceback"
    return f"; the traceback is in {file.name} (or use -v)"


def _print_document(arguments: Sequence[str], kind: str, message: str, code: int) -> None:
    if not (console.state.json or "--json" in arguments) or console.state.document_printed:
        return
    document: dict[str, Any] = {"schema_version": 1}
    if arguments and arguments[0] in _TRIAL_COMMANDS:
        document |= {"run_id": None, "run_dir": None, "trials": [], "best": None}
    document |= {"exit_code": int(code), "error": {"kind": kind, "message": message}}
    with contextlib.suppress(OSError, streams.OutputError):
        print(json.dumps(document), flush=True)


class TerminatedError(KeyboardInterrupt):
    """The process received a signal to end; handled as Ctrl-C is."""


@contextlib.contextmanager
def as_interruption() -> Iterator[None]:
    """Raise TerminatedError in the body at the first of these signals, and ignore later ones.

    A signal that the caller ignores (nohup) stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = [number for number in _SIGNALS if before[number] is signal.SIG_DFL]

    def end(number: int, frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGHUP:
            _leave_terminal()
        raise TerminatedError(f"ended by {signal.Signals(number).name}")

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _leave_terminal() -> None:
    """Send output that went to the terminal to /dev/null: writing to a terminal that hung up fails."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if stream.isatty():
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
