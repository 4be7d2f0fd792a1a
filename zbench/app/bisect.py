"""Finds the first of several revisions that is slower, larger or incorrect, by binary search."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from zbench import git
from zbench.analysis.bisect import (
    SETTINGS,
    Bisection,
    Fault,
    Finding,
    LikeGoodOrBad,
    bisect,
    fault_of,
    judged,
    slowdown_of,
)
from zbench.analysis.compare import Comparison
from zbench.analysis.measurement import Question
from zbench.app.compare import measure
from zbench.app.voice import Voice
from zbench.errors import UsageError, ZbenchError, reason_of
from zbench.launch.revisions import resolve_commit
from zbench.record.documents import replace_durably
from zbench.record.store import StorageError

_EXACT = (0, 0)  # blocks


def commits_between(good: str, bad: str) -> list[str]:
    """Return the commits from good to bad, oldest first, along first parents."""
    first, last = resolve_commit(good), resolve_commit(bad)
    done = git.call("rev-list", "--first-parent", "--reverse", f"{first}..{last}")
    names = [first, *done.stdout.decode().split()]
    if len(names) < 2 or git.call("merge-base", "--is-ancestor", first, last).returncode != 0:
        raise UsageError(f"{bad} does not come after {good}; name the good revision first")
    return names


@dataclass(slots=True)
class _Search:
    """The findings of a search so far, written to a file after each probe."""

    revisions: list[str]
    fault: Fault | None = None
    findings: dict[str, Finding] = field(default_factory=dict)
    schema_version: Literal[3] = 3

    @classmethod
    def load(cls, state: Path, names: list[str]) -> "_Search":
        """Return the search over these revisions, from its file if there is one.

        UsageError if the file is of a search over other revisions.
        """
        if not state.is_file():
            return cls(names)
        try:
            search = _FILE.validate_json(state.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {state}: {error}; remove it to start again") from None
        if search.revisions != names:
            raise UsageError(f"{state} searches other revisions; remove it, or name another with --state")
        return search

    def save(self, state: Path) -> None:
        """Replace the file by the findings: after a kill or on a full disk the file is the older one."""
        try:
            replace_durably(state, _FILE.dump_json(self, indent=2) + b"\n")
        except OSError as error:
            raise UsageError(f"cannot write {state}: {reason_of(error)}; name another with --state") from None


_FILE = TypeAdapter(_Search)


@dataclass(frozen=True, slots=True)
class Probes:
    """Paired comparisons of one search's revisions with GOOD."""

    good: str
    sweep: Path
    blocks: tuple[int, int]
    overrides: tuple[str, ...]
    seed: int | None
    voice: Voice

    def fault_of(self, bad: str, *, time_only: bool) -> Fault:
        """Return the gravest fault of BAD; UsageError if it has none.

        BAD is timed only if exact figures and verdicts show no fault, and then with the most blocks: every
        revision is compared with this measurement.
        """
        timed = (self.blocks[1], self.blocks[1])
        looks = [timed] if time_only or timed == _EXACT else [_EXACT, timed]
        for blocks in looks:
            compared = self._compare(bad, blocks, None)
            shown = slowdown_of(compared) if time_only else fault_of(compared)
            if shown is not None:
                return shown
        answers = dict.fromkeys(str(row.step_time or row.answer) for row in compared.rows)
        fault = "slowdown" if time_only else "fault"
        raise UsageError(f"BAD has no {fault} compared with GOOD: {'; '.join(answers)}")

    def finding(self, name: str, fault: Fault) -> Finding:
        """Return the finding of a comparison: `skip` for a revision that does not build or run.

        StorageError if a disk or a limit of the machine is the cause, which is no finding.
        """
        try:
            if fault.needs_clock:
                compared = self._compare(name, self.blocks, LikeGoodOrBad(fault.blocks).decide)
            else:
                compared = self._compare(name, _EXACT, None)
        except StorageError:
            raise
        except ZbenchError as error:
            self.voice.warn(f"skipped: {error}")
            return "skip"
        return judged(compared.rows, fault)

    def _compare(self, name: str, blocks: tuple[int, int], question: Question | None) -> Comparison:
        sides = (self.good, name)
        overrides = self.overrides
        seed = self.seed
        try:
            return measure(
                sides,
                self.sweep,
                blocks,
                SETTINGS,
                self.voice,
                overrides=overrides,
                seed=seed,
                question=question,
            )
        except (OSError, StorageError) as error:
            raise StorageError(f"{error}; then the same command continues the search") from None


def first_bad(names: list[str], probes: Probes, state: Path, *, time_only: bool) -> tuple[Bisection, Fault]:
    """Search revisions, oldest first, for the first one with the fault of the last; return it and the fault.

    state: the file of the findings so far, to continue the search from. time_only: search for a slowdown.
    UsageError if the last revision has no such fault.
    """
    search = _Search.load(state, names)
    if search.fault is None:
        search.fault = probes.fault_of(names[-1], time_only=time_only)
        search.save(state)
    fault, tell = search.fault, probes.voice.note
    if time_only and not fault.needs_clock:
        raise UsageError(f"{state} searches for what is {fault}; remove it, or name another with --state")
    tell(f"searching for the first revision that is {fault}")

    def probe(name: str) -> Finding:
        tell(f"{name[:12]}: comparing with {names[0][:12]}")
        finding = probes.finding(name, fault)
        tell(f"{name[:12]}: {finding}")
        search.findings[name] = finding
        search.save(state)
        return finding

    return bisect(names, probe, search.findings), fault
