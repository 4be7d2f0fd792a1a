"""The findings of a search, printed below its table."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from zbench.record.record import Record
from zbench.record.summary import ConfigSummary, summarize
from zbench.report.screen import Screen
from zbench.report.text import axes_text, plural, printable

_MOST_LINES = 5
_NO_BEST = "no best"


Line = tuple[str, str]
"""A heading, empty where the line belongs to the one above, and its text."""


def print_search(screen: Screen, document: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Print why the search stopped, how the best compares, the Pareto front, and each axis's importance.

    document: what `search.json` holds.
    """
    by_id = {summary.trial_id: summary for summary in summarize(records)}
    for heading, text in _lines(document, by_id):
        style = "bold red" if heading == _NO_BEST else "bold"
        start = (f"{heading} ", style) if heading else "  "
        screen.print(Text.assemble(start, printable(text)), soft_wrap=True)


def _lines(document: Mapping[str, Any], by_id: Mapping[str, ConfigSummary]) -> Iterator[Line]:
    yield "stopped", str(document["stopped"])
    yield from _verdict(document, by_id)
    front = [by_id[key] for key in document["pareto"] if key in by_id]
    if front:
        count = plural(len(front), "configuration")
        yield "Pareto front", f"{count} that no other beats in every objective:"
        yield from (("", axes_text(summary.axes)) for summary in front)
    if document["importance"]:
        shares = [f"{key} {share:.0%}" for key, share in document["importance"].items()]
        yield "what mattered", ", ".join(shares)
    yield from _untried(document)


def _verdict(document: Mapping[str, Any], by_id: Mapping[str, ConfigSummary]) -> Iterator[Line]:
    miss = document["nearest_miss"]
    if document["best"] is None:
        yield _NO_BEST, "no configuration is both feasible and correct"
        if miss is not None:
            yield "", f"nearest: {axes_text(miss['axes'])}, but {'; '.join(miss['obstacles'])}"
        return
    other = by_id.get(document["runner_up"])
    if other is None or document["lead"] is None:
        return
    equals = len(document["indistinguishable"])
    sure = (
        "separated from all others"
        if document["separated"]
        else f"not separated: {equals} cannot be told apart"
        if equals > 1
        else "not separated"
    )
    yield "measured again", f"{document['lead']:+.1%} against {axes_text(other.axes)} ({sure})"


def _untried(document: Mapping[str, Any]) -> Iterator[Line]:
    ruled_out = document["hopeless"]
    if not ruled_out:
        return
    yield "not tried", f"{plural(len(ruled_out), 'point')} that the simulation rules out, such as:"
    for entry in ruled_out[:_MOST_LINES]:
        yield "", f"{axes_text(entry['point'])}: {entry['reason']}"
