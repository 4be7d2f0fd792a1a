"""What `sweep`, `run`, `tune` and `worker` print at the end: table or document, and the next command."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zbench.analysis.ranking import rank_run
from zbench.app.request import Request
from zbench.app.runs import Interruption
from zbench.cli import console
from zbench.errors import ExitCode, OutOfTimeError
from zbench.record import lines
from zbench.record.checking import require_kept
from zbench.record.record import Record
from zbench.record.secrets import masked_record
from zbench.record.summary import summarize
from zbench.report.detail import print_configuration
from zbench.report.table import print_results, print_search
from zbench.report.text import plural


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A run that has ended, or was cut short by `failure`; `command` is the one that continues it."""

    request: Request
    path: Path
    records: Sequence[Record]
    code: ExitCode
    failure: Interruption | None
    command: str

    def show(self, *, detailed: bool = False, **search: Any) -> ExitCode:
        """Print the run's table (each configuration in full if `detailed`) or document; return its exit code.

        search: the document of a search, if the run is one, under that name. UsageError if the records are no
        longer on disk.
        """
        summaries = summarize(self.records)
        objective = self.request.sweep.objective
        ranking = rank_run(self.path, summaries, objective)
        require_kept(self.path, self.records)
        screen = console.rich_console()
        if console.state.json:
            console.document(self.document(**ranking.document(), **search), self.code)
        elif detailed:
            for summary in summaries:
                print_configuration(screen, summary, self.path)
        elif self.records:
            print_results(screen, self.records, objective, self.path, ranking)
            if search.get("search") is not None:
                print_search(screen, search["search"], self.records)
        self._say(is_export_next=ranking.recommended is not None)
        require_kept(self.path, self.records)  # what was printed can be lost by now
        return self.code

    def document(self, best: str | None, **more: Any) -> dict[str, Any]:
        """Return the document that `--json` prints."""
        document: dict[str, Any] = {
            "run_id": self.path.name,
            "run_dir": str(self.path),
            "trials": [lines.jsonable(masked_record(record)) for record in self.records],
            "best": best,
            **more,
        }
        if self.failure is not None:
            document["error"] = {"kind": type(self.failure).__name__, "message": self._reason}
        return document

    def _say(self, *, is_export_next: bool) -> None:
        """Print on stderr where the results are and the next command: after an interruption, to continue."""
        if isinstance(self.failure, OutOfTimeError):
            console.warn(f"{self._reason}; continue with")
            console.note(f"  {self._resume}")
        elif self.failure is not None:
            console.error(f"{self._reason}; {plural(len(self.records), 'record')} kept, continue with")
            console.note(f"  {self._resume}")
        elif not console.state.json:
            console.note(f"results in {self.path}; next, for instance:")
            console.note(f"  zbench report {shlex.quote(str(self.path))} --html report.html")
            if is_export_next:
                console.note(f"  zbench export {shlex.quote(str(self.path))} --trial best")

    @property
    def _reason(self) -> str:
        return str(self.failure) or "interrupted"

    @property
    def _resume(self) -> str:
        source = [os.path.relpath(self.request.source)] if self.request.source else []
        added = [word for setting in self.request.added for word in ("--set", setting)]
        return shlex.join(["zbench", self.command, *source, "--resume", str(self.path), *added])
