"""`zbench bisect`: the first commit that is slower, bigger or wrong, by as few comparisons as decide."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zbench.cli import console
from zbench.cli.options import Overrides, Seed, common_flags
from zbench.errors import ExitCode, UsageError, ZbenchError

if TYPE_CHECKING:
    from zbench.analysis.bisect import Finding, Found
    from zbench.analysis.compare import Comparison

_SOUGHT = ("incorrect", "failed", "regression")


@common_flags()
def command(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A revision without the fault.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later revision that has it.")],
    sweep: Annotated[Path, typer.Option(metavar="FILE", help="Sweep file that every revision runs.")],
    versions: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Interpreters or environments from GOOD to BAD, not commits."),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="As for compare --paired; 0: exact figures only.")
    ] = None,
    state: Annotated[
        Path, typer.Option(metavar="FILE", help="Where findings are kept, to go on after an interruption.")
    ] = Path("zbench-bisect.json"),
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    seed: Seed = None,
) -> None:
    """Find the first commit between GOOD and BAD whose paired comparison with GOOD shows BAD's fault.

    zbench bisect v1.2 HEAD --sweep sweeps/quickstart.yaml
    """
    from zbench.analysis.bisect import bisect

    names = [good, *(word.strip() for word in versions.split(",")), bad] if versions else _commits(good, bad)
    search = _Search.load(state, names)

    def compared(name: str) -> "Comparison":
        return _compare(names[0], name, sweep, blocks, tuple(overrides), seed)

    sought = search.sought = search.sought or _sought(compared(names[-1]))

    def probe(name: str) -> "Finding":
        console.note(f"{name[:12]}: comparing with {names[0][:12]}")
        found = _probe(lambda: compared(name), sought)
        console.note(f"{name[:12]}: {found}")
        search.findings[name] = found
        search.save(state)
        return found

    _print(bisect(names, probe, search.findings), sought)


def _commits(good: str, bad: str) -> list[str]:
    """Return the commits from good to bad, oldest first, along first parents."""
    from zbench.launch.revisions import git, resolve_commit

    first, last = resolve_commit(good), resolve_commit(bad)
    done = git("rev-list", "--first-parent", "--reverse", f"{first}..{last}")
    names = [first, *done.stdout.decode().split()]
    if len(names) < 2 or git("merge-base", "--is-ancestor", first, last).returncode != 0:
        raise UsageError(f"{bad} does not come after {good}; name the good revision first")
    return names


@dataclass(slots=True)
class _Search:
    """What a search knows so far, kept in a file after each probe."""

    revisions: list[str]
    sought: str | None = None
    findings: "dict[str, Finding]" = field(default_factory=dict)

    @classmethod
    def load(cls, state: Path, names: list[str]) -> "_Search":
        """Return the search over these revisions, begun or new; UsageError if the file is about others."""
        if not state.is_file():
            return cls(names)
        try:
            found = json.loads(state.read_text())
            kept = cls(found["revisions"], found["sought"], dict(found["findings"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"cannot read {state}: {error}; remove it to begin anew") from None
        if kept.revisions != names:
            raise UsageError(f"{state} is about other revisions; remove it, or name another with --state")
        return kept

    def save(self, state: Path) -> None:
        """Write what is known."""
        document = {"revisions": self.revisions, "sought": self.sought, "findings": self.findings}
        try:
            state.write_text(json.dumps({"schema_version": 1, **document}, indent=2) + "\n")
        except OSError as error:
            raise UsageError(
                f"cannot write {state}: {error.strerror or error}; choose with --state"
            ) from None


def _compare(
    good: str, name: str, sweep: Path, blocks: str | None, overrides: tuple[str, ...], seed: int | None
) -> "Comparison":
    from zbench.analysis.compare import PAIRED_THRESHOLDS, Settings
    from zbench.cli.compare_paired import PairedRequest, measure

    request = PairedRequest(good, name, sweep, blocks, None, overrides, seed)
    return measure(request, Settings(thresholds=PAIRED_THRESHOLDS))


def _sought(comparison: "Comparison") -> str:
    """Return the gravest fault of BAD against GOOD; UsageError where there is none to look for."""
    for answer in _SOUGHT:
        if any(row.answer == answer for row in comparison.rows):
            return answer
    answers = ", ".join(dict.fromkeys(row.answer for row in comparison.rows))
    raise UsageError(f"BAD shows no fault against GOOD ({answers}): there is nothing to look for")


def _probe(compared: Callable[[], "Comparison"], sought: str) -> "Finding":
    """Return what a comparison says of a revision; one that does not build or run is skipped."""
    from zbench.analysis.bisect import judged

    try:
        found = compared()
    except ZbenchError as error:
        console.warn(f"skipped: {error}")
        return "skip"
    return judged([row.answer for row in found.rows], sought)


def _print(found: "Found", sought: str) -> None:
    code = ExitCode.PASS if found.first_bad is not None else ExitCode.INCONCLUSIVE
    if console.state.json:
        document = {"first_bad": found.first_bad, "candidates": list(found.candidates), "sought": sought}
        console.document({"schema_version": 1, **document, "probes": found.probes, "exit_code": int(code)})
    elif found.first_bad is not None:
        console.result(f"{found.first_bad} is the first revision that is {sought} ({found.probes} probes)")
    else:
        console.result(f"the first revision that is {sought} is one of: {', '.join(found.candidates)}")
    raise typer.Exit(int(code))
