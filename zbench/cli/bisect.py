"""`zbench bisect`: the first commit that is slower, bigger or wrong, by as few comparisons as decide."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zbench.cli import console
from zbench.cli.options import Overrides, Seed, common_flags
from zbench.errors import ExitCode, UsageError, ZbenchError

if TYPE_CHECKING:
    from zbench.analysis.bisect import Fault, Finding, Found
    from zbench.analysis.compare import Comparison

_EXACT = "0"


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
    slower: Annotated[
        bool, typer.Option("--slower", help="Seek the slowdown, though exact figures or verdicts differ.")
    ] = False,
    state: Annotated[
        Path, typer.Option(metavar="FILE", help="Where findings are kept, to go on after an interruption.")
    ] = Path("zbench-bisect.json"),
    overrides: Overrides = [],  # noqa: B006 - Typer reads the default, nobody changes it
    seed: Seed = None,
) -> None:
    """Find the first commit between GOOD and BAD whose paired comparison with GOOD shows BAD's fault.

    A wrong result or a larger exact figure is sought without a clock; only a slowdown is timed.

    zbench bisect v1.2 HEAD --sweep sweeps/quickstart.yaml
    """
    from zbench.analysis.bisect import bisect

    names = [good, *(word.strip() for word in versions.split(",")), bad] if versions else _commits(good, bad)
    search = _Search.load(state, names)

    def compared(name: str, how: str | None) -> "Comparison":
        return _compare(names[0], name, sweep, how, tuple(overrides), seed)

    looks = [blocks] if slower or blocks == _EXACT else [_EXACT, blocks]
    fault = search.fault or _fault(lambda how: compared(names[-1], how), looks, time_only=slower)
    if slower and not fault.needs_clock:
        raise UsageError(f"{state} seeks what is {fault}; remove it, or name another with --state")
    search.fault = fault
    how = blocks if fault.needs_clock else _EXACT
    console.note(f"seeking the first revision that is {fault}")

    def probe(name: str) -> "Finding":
        console.note(f"{name[:12]}: comparing with {names[0][:12]}")
        found = _probe(lambda: compared(name, how), fault)
        console.note(f"{name[:12]}: {found}")
        search.findings[name] = found
        search.save(state)
        return found

    _print(bisect(names, probe, search.findings), fault)


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
    fault: "Fault | None" = None
    findings: "dict[str, Finding]" = field(default_factory=dict)

    @classmethod
    def load(cls, state: Path, names: list[str]) -> "_Search":
        """Return the search over these revisions, begun or new; UsageError if the file is about others."""
        from zbench.analysis.bisect import Fault

        if not state.is_file():
            return cls(names)
        try:
            found = json.loads(state.read_text())
            fault = Fault(found["sought"], frozenset(found.get("metrics", ())))
            kept = cls(found["revisions"], fault, dict(found["findings"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"cannot read {state}: {error}; remove it to begin anew") from None
        if kept.revisions != names:
            raise UsageError(f"{state} is about other revisions; remove it, or name another with --state")
        return kept

    def save(self, state: Path) -> None:
        """Write what is known."""
        assert self.fault is not None, "a search is saved after its first finding"
        sought = {"sought": self.fault.answer, "metrics": sorted(self.fault.metrics)}
        document = {"revisions": self.revisions, **sought, "findings": self.findings}
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


def _fault(
    compared: "Callable[[str | None], Comparison]", looks: Sequence[str | None], *, time_only: bool
) -> "Fault":
    """Return the gravest fault of BAD against GOOD, by the first look that shows one; UsageError for none."""
    from zbench.analysis.bisect import Fault, fault_of

    answers: dict[str, None] = {}
    for blocks in looks:
        rows = compared(blocks).rows
        slower = any(row.step_time is not None and row.step_time.answer == "regression" for row in rows)
        found = (Fault("regression") if slower else None) if time_only else fault_of(rows)
        if found is not None:
            return found
        answers |= dict.fromkeys(row.answer for row in rows)
    raise UsageError(f"BAD shows no fault against GOOD ({', '.join(answers)}): there is nothing to look for")


def _probe(compared: Callable[[], "Comparison"], fault: "Fault") -> "Finding":
    """Return what a comparison says of a revision; one that does not build or run is skipped."""
    from zbench.analysis.bisect import judged

    try:
        return judged(compared().rows, fault)
    except ZbenchError as error:
        console.warn(f"skipped: {error}")
        return "skip"


def _print(found: "Found", fault: "Fault") -> None:
    code = ExitCode.PASS if found.first_bad is not None else ExitCode.INCONCLUSIVE
    if console.state.json:
        sought = {"sought": fault.answer, "metrics": sorted(fault.metrics)}
        document = {"first_bad": found.first_bad, "candidates": list(found.candidates), **sought}
        console.document({"schema_version": 1, **document, "probes": found.probes, "exit_code": int(code)})
    elif found.first_bad is not None:
        console.result(f"{found.first_bad} is the first revision that is {fault} ({found.probes} probes)")
    else:
        console.result(f"the first revision that is {fault} is one of: {', '.join(found.candidates)}")
    raise typer.Exit(int(code))
