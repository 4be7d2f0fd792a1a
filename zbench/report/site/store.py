"""What is in a site's directory: its pages and, of each run, enough to draw trends without its records."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import quote

from pydantic import TypeAdapter

from zbench.analysis.history import KeptTrial, machine_log
from zbench.analysis.trials import RunResults, Source
from zbench.errors import UsageError, reason_of
from zbench.record.documents import (
    drafts,
    make_directory,
    page_source,
    read_json,
    replace_durably,
    sealed,
    sealed_page,
)
from zbench.record.locks import DirectoryLock
from zbench.record.record import SCHEMA_VERSION
from zbench.record.store import StorageError
from zbench.record.summary import ConfigSummary, has_failed, is_incorrect
from zbench.report.html.content import Report
from zbench.report.html.page import machine_text
from zbench.report.text import label, printable, result_text, throughput_text
from zbench.spec.metrics import METRICS, RATES, STEP_TIMES

_MARKER = ".zbench-site"
TRENDS = [name for name in METRICS if name not in (*STEP_TIMES[1:], *RATES, "tflops", "verdict")]
"""The metrics that a site follows; rates and FLOP/s are a step's work, always the same, over that time."""


@dataclass(frozen=True, slots=True)
class KeptRun:
    """One run. best: the best configuration or, after `≈`, the recommended one; throughput: its rate."""

    source: Source
    trials: tuple[KeptTrial, ...]
    machines: frozenset[str]
    failed: int
    incorrect: int
    best: str
    throughput: str
    tags: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(cls, results: RunResults, report: Report) -> Self:
        """Return what a site keeps of a run; without the place where it was found."""
        winner = report.winner
        mark = "≈ " if report.ranking.tied else ""
        return cls(
            replace(results.source, name=results.source.run_ids[0], path=""),
            tuple(map(_kept_trial, results.trials)),
            results.machines,
            sum(map(has_failed, results.trials)),
            sum(map(is_incorrect, results.trials)),
            f"{mark}{label(winner)}" if winner else "",
            throughput_text(winner) if winner else "",
        )

    @property
    def id(self) -> str:
        """Return the run's id."""
        return self.source.run_ids[0]

    @property
    def name(self) -> str:
        """Return `sweep/run id`, under which the site keeps it."""
        return f"{self.source.sweep}/{self.id}"

    @property
    def page(self) -> str:
        """Return the address of the run's page."""
        return quote(f"runs/{self.name}.html")

    @property
    def facts(self) -> dict[str, str]:
        """Return where the run was made."""
        source = self.source
        facts = {"Sweep": source.sweep, "Branch": source.branch, "Machine": machine_text(source.facts)}
        return {name: printable(value) for name, value in facts.items() if value}


def _kept_trial(trial: ConfigSummary) -> KeptTrial:
    figures = {}
    for name in TRENDS:
        value = trial.number(name)
        repeats = trial.values(name)
        if value is not None and all(map(math.isfinite, (value, *repeats))):
            figures[name] = (float(value), float(min(repeats)), float(max(repeats)))
    return KeptTrial(trial.trial_id, trial.axes, result_text(trial), figures, *machine_log(trial))


_KEPT_RUN = TypeAdapter(KeptRun)


class Site:
    """A site's directory, open for writing by one process until `close`.

    Each file is replaced as a whole, so that what was published stays until its successor is there. A page
    ends in the digest of what it was made from, and its own: it is made again where one is not right.
    """

    def __init__(self, place: Path) -> None:
        """Lock a directory, made if missing. UsageError if it holds files and is no site."""
        self.place, self.written = place, 0
        try:
            make_directory(place)
            foreign = sorted({file.name for file in place.iterdir() if file.name[0] != "."} - {"CNAME"})
            if foreign and not (place / _MARKER).is_file():
                raise UsageError(
                    f"{place} holds other files than a site's ({', '.join(foreign[:3])}); name a new or an"
                    " empty directory"
                )
            self._lock = DirectoryLock(place)
        except OSError as error:
            raise UsageError(f"cannot write a site into {place}: {reason_of(error)}") from None
        for draft in drafts(place, "**"):  # no other process writes any now
            draft.unlink()
        self.write(_MARKER, "")

    def close(self) -> None:
        """Let others write."""
        self._lock.release()

    def is_current(self, name: str, digest: str) -> bool:
        """Whether a page is there that was made from what this digest stands for."""
        path = self.place / name
        return path.is_file() and page_source(path.read_bytes()) == digest

    def write(self, name: str, text: str, digest: str = "") -> None:
        """Put a file in its place; one that is the same stays untouched."""
        path = self.place / name
        data = text.encode()
        if path.suffix == ".html":
            data = sealed_page(data, digest)
        try:
            make_directory(path.parent)
            if not path.is_file() or path.read_bytes() != data:
                replace_durably(path, data)
                self.written += 1
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {reason_of(error)}; what was published stays; mend that and"
                " publish again"
            ) from None

    def keep(self, run: KeptRun) -> None:
        """Keep what trends need of a run."""
        self.write(f"runs/{run.name}.json", sealed(_KEPT_RUN.dump_python(run, mode="json")).decode())

    def kept(self) -> Iterator[KeptRun]:
        """Yield every run that the site keeps, oldest first; UsageError where one is damaged."""
        for path in sorted(self.place.glob("runs/*/*.json"), key=lambda path: (path.name, str(path))):
            yield read_json(path, _KEPT_RUN, "remove it, and publish its records again")
