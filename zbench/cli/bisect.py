"""`zbench bisect`: find the first commit that is slower, larger or incorrect, by binary search."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import TypeAdapter

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
from zbench.cli import console, options
from zbench.cli.compare import measure, parse_blocks
from zbench.errors import ExitCode, UsageError, ZbenchError, reason_of
from zbench.launch.revisions import git, resolve_commit

_EXACT = (0, 0)  # blocks


def command(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A revision without the fault.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later revision with the fault.")],
    sweep: Annotated[Path, typer.Option(metavar="FILE", help="Sweep file that every revision runs.")],
    versions: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Search these environments between GOOD and BAD, not commits."),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="As for compare --paired. 0: exact figures only.")
    ] = None,
    slower: Annotated[
        bool,
        typer.Option("--slower", help="Search for a slowdown even if exact figures differ."),
    ] = False,
    state: Annotated[
        Path, typer.Option(metavar="FILE", help="File of the findings so far, to continue the search from.")
    ] = Path("zbench-bisect.json"),
    overrides: options.Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    seed: options.Seed = None,
) -> None:
    """Find the first commit between GOOD and BAD with the fault of BAD, by paired comparisons with GOOD.

    To search for an incorrect result or a larger exact figure, each
    commit is run without timing it. To search for a slowdown, each commit
    is timed, and classified as like GOOD or like BAD.
    """
    names = [good, *(word.strip() for word in versions.split(",")), bad] if versions else _commits(good, bad)
    search = _Search.load(state, names)
    probes = _Probes(names[0], sweep, parse_blocks(blocks), tuple(overrides), seed)
    if search.fault is None:
        search.fault = probes.fault_of(names[-1], time_only=slower)
        search.save(state)
    fault = search.fault
    if slower and not fault.needs_clock:
        raise UsageError(f"{state} searches for what is {fault}; remove it, or name another with --state")
    console.note(f"searching for the first revision that is {fault}")

    def probe(name: str) -> Finding:
        console.note(f"{name[:12]}: comparing with {names[0][:12]}")
        finding = probes.finding(name, fault)
        console.note(f"{name[:12]}: {finding}")
        search.findings[name] = finding
        search.save(state)
        return finding

    _print(bisect(names, probe, search.findings), fault)


def _commits(good: str, bad: str) -> list[str]:
    """Return the commits from good to bad, oldest first, along first parents."""
    first, last = resolve_commit(good), resolve_commit(bad)
    done = git("rev-list", "--first-parent", "--reverse", f"{first}..{last}")
    names = [first, *done.stdout.decode().split()]
    if len(names) < 2 or git("merge-base", "--is-ancestor", first, last).returncode != 0:
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
            kept = _FILE.validate_json(state.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {state}: {error}; remove it to start again") from None
        if kept.revisions != names:
            raise UsageError(f"{state} searches other revisions; remove it, or name another with --state")
        return kept

    def save(self, state: Path) -> None:
        """Write the findings."""
        try:
            state.write_bytes(_FILE.dump_json(self, indent=2) + b"\n")
        except OSError as error:
            raise UsageError(f"cannot write {state}: {reason_of(error)}; name another with --state") from None


_FILE = TypeAdapter(_Search)


@dataclass(frozen=True, slots=True)
class _Probes:
    """Paired comparisons of one search's revisions with GOOD."""

    good: str
    sweep: Path
    blocks: tuple[int, int]
    overrides: tuple[str, ...]
    seed: int | None

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
        """Return the finding of a comparison: `skip` for a revision that does not build or run."""
        try:
            if fault.needs_clock:
                compared = self._compare(name, self.blocks, LikeGoodOrBad(fault.blocks).decide)
            else:
                compared = self._compare(name, _EXACT, None)
        except ZbenchError as error:
            console.warn(f"skipped: {error}")
            return "skip"
        return judged(compared.rows, fault)

    def _compare(self, name: str, blocks: tuple[int, int], question: Question | None) -> Comparison:
        sides, overrides = (self.good, name), self.overrides
        return measure(
            sides, self.sweep, blocks, SETTINGS, overrides=overrides, seed=self.seed, question=question
        )


def _print(bisection: Bisection, fault: Fault) -> None:
    code = ExitCode.PASS if bisection.first_bad is not None else ExitCode.INCONCLUSIVE
    if console.state.json:
        sought = {"sought": fault.answer, "metrics": sorted(fault.metrics)}
        document = {"first_bad": bisection.first_bad, "candidates": list(bisection.candidates), **sought}
        console.document({**document, "probes": bisection.probes}, code)
    elif bisection.first_bad is not None:
        console.result(
            f"{bisection.first_bad} is the first revision that is {fault} ({bisection.probes} probes)"
        )
    else:
        console.result(f"the first revision that is {fault} is one of: {', '.join(bisection.candidates)}")
    raise typer.Exit(int(code))
