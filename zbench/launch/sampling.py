"""Run a whole sweep once with another version of zbench, by its command line, and return the records."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zbench.errors import ExitCode, TrialsFailedError, UsageError
from zbench.launch.checkouts import Checkouts
from zbench.launch.revisions import Version, clean_environment
from zbench.record import lines
from zbench.record.record import Record

_MOST_SAID = 500


class Sampler:
    """Takes samples: each is a `zbench sweep FILE --json` of its own, with new processes for every trial.

    Each revision runs its own checkout: its sweep file, and the model and data beside it.

    Only the public command line is used, so any two versions that have it can be compared.
    """

    def __init__(self, file: Path, settings: Sequence[str]) -> None:
        self._checkouts, self._settings = Checkouts(file), (*settings, "run.repeats=1")

    def take(self, version: Version) -> list[Record]:
        """Return one repeat of every trial; UsageError or TrialsFailedError where the version cannot.

        A sample that was killed from outside is taken once more: hours of others should not be lost with it.
        """
        done = self._sweep(version)
        if done.returncode < 0:
            done = self._sweep(version)
        document = _document(done.stdout)
        if document is None or not document.get("trials"):
            raise _complaint(version, done, document)
        place = f"{version.name}: a record of its sweep"
        return [lines.decode(record, place) for record in document["trials"]]

    def _sweep(self, version: Version) -> subprocess.CompletedProcess[bytes]:
        file = self._checkouts.sweep_file(version)
        with tempfile.TemporaryDirectory(prefix="zbench-sample-") as scratch:
            words = [word for setting in self._settings for word in ("--set", setting)]
            # -P: a zbench directory in the working directory must not shadow the version's own
            command = [str(version.python), "-P", "-m", "zbench.cli.main", "sweep", str(file)]
            command += ["--json", "--quiet", "--output-dir", scratch, *words]
            try:
                return subprocess.run(
                    command, capture_output=True, cwd=scratch, env=clean_environment(), check=False
                )
            except OSError as error:  # it was there when the measurement began
                raise TrialsFailedError(
                    f"{version.name} cannot be run any more: {version.python}: {error.strerror}; "
                    "leave its environment in place until the measurement ends, and compare again"
                ) from None


def _document(stdout: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(stdout)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _complaint(
    version: Version, done: subprocess.CompletedProcess[bytes], document: dict[str, Any] | None
) -> UsageError | TrialsFailedError:
    error = (document or {}).get("error") or {}
    said = (
        error.get("message")
        or done.stderr.decode(errors="replace").strip()[-_MOST_SAID:]
        or "it said nothing"
    )
    text = f"{version.name} cannot run the sweep (exit {done.returncode}): {said}"
    return UsageError(text) if done.returncode == ExitCode.USAGE else TrialsFailedError(text)
