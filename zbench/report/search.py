"""What a search found, in words under its table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, summarize
from zbench.report.text import axes_text

_MOST_LINES = 5


def print_search(console: Console, document: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Print why the search stopped, how the best held up, the front, and what mattered.

    document: what `search.json` holds.
    """
    by_id = {summary.trial_id: summary for summary in summarize(records)}
    for line in _lines(document, by_id):
        console.print(Text.from_markup(line), soft_wrap=True)


def _lines(document: Mapping[str, Any], by_id: Mapping[str, ConfigSummary]) -> Iterator[str]:
    yield f"[bold]stopped[/] {document['stopped']}"
    yield from _verdict(document, by_id)
    front = [by_id[key] for key in document["pareto"] if key in by_id]
    if front:
        yield f"[bold]Pareto front[/] {len(front)} configurations that nothing beats in every objective:"
        yield from (f"  {axes_text(summary.axes)}" for summary in front)
    if document["importance"]:
        shares = [f"{key} {share:.0%}" for key, share in document["importance"].items()]
        yield f"[bold]what mattered[/] {', '.join(shares)}"
    yield from _untried(document)
    for path in document["elsewhere"]:
        yield f"[bold]other machines[/] their results are in {path}; unlike machines are not ranked together"


def _verdict(document: Mapping[str, Any], by_id: Mapping[str, ConfigSummary]) -> Iterator[str]:
    miss = document["nearest_miss"]
    if document["best"] is None:
        yield "[bold red]no best[/] no configuration is both feasible and correct"
        if miss is not None:
            yield f"  nearest: {axes_text(miss['axes'])}, but {'; '.join(miss['obstacles'])}"
        return
    other = by_id.get(document["runner_up"])
    if other is None or document["lead"] is None:
        return
    sure = "in every repeat" if document["clear"] else "their repeats overlap, so either may be faster"
    yield f"[bold]measured again[/] {document['lead']:+.1%} against {axes_text(other.axes)} ({sure})"


def _untried(document: Mapping[str, Any]) -> Iterator[str]:
    hopeless = document["hopeless"]
    if not hopeless:
        return
    yield f"[bold]not tried[/] {len(hopeless)} points that the memory model rules out, such as:"
    for entry in hopeless[:_MOST_LINES]:
        yield f"  {axes_text(entry['point'])}: {entry['reason']}"
