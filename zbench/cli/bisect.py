"""`zbench bisect`: find the first commit that is slower, larger or incorrect, by binary search."""

from pathlib import Path
from typing import Annotated

import typer

from zbench.analysis.bisect import Bisection, Fault
from zbench.app.bisect import Probes, commits_between, first_bad
from zbench.app.compare import parse_blocks
from zbench.cli import console, options
from zbench.errors import ExitCode
from zbench.report.text import plural, printable


def command(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="A revision without the fault.")],
    bad: Annotated[str, typer.Argument(metavar="BAD", help="A later revision with the fault.")],
    sweep: Annotated[Path, typer.Option(metavar="FILE", help="Sweep file that every revision runs.")],
    versions: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Search these environments, not the commits between GOOD and BAD."),
    ] = None,
    blocks: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="Blocks, as for compare --paired. 0: exact figures.")
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
    between = [word.strip() for word in versions.split(",")] if versions else None
    names = commits_between(good, bad) if between is None else [good, *between, bad]
    probes = Probes(names[0], sweep, parse_blocks(blocks), tuple(overrides), seed, console.voice())
    _print(*first_bad(names, probes, state, time_only=slower))


def _print(bisection: Bisection, fault: Fault) -> None:
    code = ExitCode.PASS if bisection.first_bad is not None else ExitCode.INCONCLUSIVE
    if console.state.json:
        sought = {"sought": fault.answer, "metrics": sorted(fault.metrics), "shown": fault.shown}
        document = {"first_bad": bisection.first_bad, "candidates": list(bisection.candidates), **sought}
        console.document({**document, "probes": bisection.probes}, code)
    elif bisection.first_bad is not None:
        shown = f": {printable(fault.shown)}" if fault.shown else ""
        probes = plural(bisection.probes, "probe")
        console.result(f"{bisection.first_bad} is the first revision that is {fault} ({probes}){shown}")
    else:
        console.result(f"the first revision that is {fault} is one of: {', '.join(bisection.candidates)}")
    raise typer.Exit(int(code))
