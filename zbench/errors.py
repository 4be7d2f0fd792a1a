"""User-facing errors and the exit codes of every command."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """The exit status of every command. `EXIT_CODES` has the texts."""

    PASS = 0
    REGRESSION = 1
    USAGE = 2
    INCONCLUSIVE = 3
    CORRECTNESS = 4
    INCOMPARABLE = 5
    TRIALS_FAILED = 6
    INTERNAL = 70
    INTERRUPTED = 130


EXIT_CODES: dict[int, str] = {
    ExitCode.PASS: "pass",
    ExitCode.REGRESSION: "regression: slower or larger than the threshold allows; or nothing fits",
    ExitCode.USAGE: "bad input (a wrong flag, a missing or damaged file), or no disk space or memory left",
    ExitCode.INCONCLUSIVE: "inconclusive: more measurements are needed to decide",
    ExitCode.CORRECTNESS: "incorrect: a trial drifted or is wrong",
    ExitCode.INCOMPARABLE: "incomparable: the results are of unlike machines or sweeps",
    ExitCode.TRIALS_FAILED: "trials failed or are missing",
    ExitCode.INTERNAL: "internal error: a bug in zbench",
    ExitCode.INTERRUPTED: "interrupted; continue with --resume",
}


class ZbenchError(Exception):
    """An error whose text is for the user: what was expected, what was found, and the remedy."""

    exit_code: ExitCode = ExitCode.INTERNAL


class UsageError(ZbenchError, ValueError):
    """Bad input: a wrong flag, a missing file, an invalid key or value in a sweep file."""

    exit_code = ExitCode.USAGE


class UnsupportedError(UsageError):
    """An engine cannot train this model at all, which only its ranks could find out."""


class OutOfTimeError(ZbenchError):
    """A measurement reached its time limit (`--max-time`) before it was complete."""

    exit_code = ExitCode.INCONCLUSIVE


class DamagedReferenceError(UsageError):
    """A saved reference is damaged; it is computed again."""


def reason_of(error: OSError) -> str:
    """Return why a system call failed, without the error number and the path."""
    return error.strerror or str(error)


class SkippedRecordWarning(UserWarning):
    """A record of a run has a figure that no measurement gives, so it is left out."""


class SpecError(UsageError):
    """Bad input at a known place of a sweep file; its text is `file:line: key.path: message`."""

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, key: str = ""
    ) -> None:
        place = ":".join(str(part) for part in (file, line) if part is not None)
        super().__init__(": ".join(part for part in (place, key, message) if part))
        self.message, self.file, self.line, self.key = message, file, line, key


@contextlib.contextmanager
def undamaged(path: Path, remedy: str) -> Iterator[None]:
    """Convert an exception of the body, which reads the file `path`, to a UsageError with the remedy."""
    try:
        yield
    except (ZbenchError, MemoryError):
        raise
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error}); check its permissions and the disk") from None
    except Exception as error:  # parsers, torch and numpy raise different types
        description = f"{type(error).__name__}: {error}"[:200]
        raise UsageError(f"{path}: damaged ({description}); {remedy}") from error


class RanksDisagreeError(ZbenchError):
    """Ranks of one training run made different calls; the engine stops before any weight changes."""

    exit_code = ExitCode.TRIALS_FAILED


class IncomparableError(ZbenchError):
    """Two results cannot be compared: they come from different machines or sweeps."""

    exit_code = ExitCode.INCOMPARABLE


class TrialsFailedError(ZbenchError):
    """Trials that the command needs did not complete."""

    exit_code = ExitCode.TRIALS_FAILED


def closest(name: object, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to `name`, or None if none is similar."""
    matches = difflib.get_close_matches(str(name).lower(), list(candidates), cutoff=cutoff)
    return matches[0] if matches else None


def nearest(name: object, candidates: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or an empty text if no known name is similar."""
    match = closest(name, candidates)
    return f" (did you mean {match!r}?)" if match else ""
