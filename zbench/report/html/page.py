"""The page: facts, pictures with the figures behind them, the table of configurations, failures, method."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zbench import __version__
from zbench.record.record import VERDICT_ORDER
from zbench.record.summary import ConfigSummary, varied_keys
from zbench.report.exports import words
from zbench.report.html import content, scatter, style
from zbench.report.html.chart import Picture, rows_note
from zbench.report.html.content import Report
from zbench.report.html.markup import Markup, join, tag
from zbench.report.html.rows import Name
from zbench.report.labels import failure_message, label
from zbench.report.printable import printable
from zbench.report.text import (
    bytes_text,
    outcome_text,
    plural,
    rate_text,
    ratio_text,
    seconds_text,
    spread_text,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The page may load nothing and run nothing, whatever its text says."""

_COLUMNS = ("tokens/s", "spread", "median step", "peak device", "peak host", "verdict", "error ratio")


def render(report: Report) -> str:
    """Return the whole page as HTML; it needs no network and no script."""
    title = f"{report.source.sweep or 'results'} · zbench"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", title),
        tag("style", Markup(style.COLOURS + style.PAGE + style.MARKS)),
    )
    main = tag(
        "main", _header(report), *_sections(report), _table(report), _failures(report), _footer(report)
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", main), lang="en") + "\n"


def _best(report: Report, winner: ConfigSummary | None) -> str:
    if winner is None:
        return "none is both correct and within the constraints"
    equals = len(report.ranking.indistinguishable)
    more = f" (recommended for its memory: one of {equals} that cannot be told apart)" if equals > 1 else ""
    return f"{label(winner)}{more}"


def _header(report: Report) -> Markup:
    source, winner = report.source, report.winner
    counts = {
        verdict: sum(s.verdict == verdict for s in report.finished) for verdict in reversed(VERDICT_ORDER)
    }
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    facts: dict[str, str | None] = {
        "Best configuration": _best(report, winner),
        "Throughput": f"{rate_text(winner.number('tokens_per_s'))} tokens/s" if winner else None,
        "Configurations": f"{len(report.summaries)}, {len(report.finished)} of them measured",
        "Verdicts": verdicts or "none",
        "Machine": _machine(source.facts),
        "Run": ", ".join(source.run_ids) or source.name,
        "Commit": source.commit,
        "Started": source.started,
    }
    entries = [
        tag(
            "div",
            tag("dt", key),
            tag("dd", printable(value)),
            class_="wide" if key == "Best configuration" else None,
        )
        for key, value in facts.items()
        if value
    ]
    return tag("header", tag("h1", source.sweep or source.name), tag("dl", *entries, class_="facts"))


def _machine(facts: Mapping[str, Any]) -> str:
    named = [facts.get("cpu"), *(facts.get("gpus") or [])]
    cores = facts.get("cores")
    torch = facts.get("torch")
    words = [
        *(str(name) for name in named if name),
        f"{cores} cores" if cores else "",
        f"torch {torch}" if torch else "",
    ]
    return ", ".join(word for word in words if word)


def _sections(report: Report) -> Iterable[Markup]:
    pictures = content.pictures(report)
    drawn = report.finished[: content.MOST_ROWS]
    note = rows_note(len(drawn), len(report.finished))
    keys = " · ".join(varied_keys(report.summaries)) or "trial"
    extras = {
        "throughput-memory": lambda: _scatter_words(report),
        "changes": lambda: _comparison_table(report),
        "step-times": lambda: Markup(""),
        "memory": lambda: _parts(content.memory_rows(drawn), bytes_text, "Memory by category"),
        "phases": lambda: _parts(content.phase_rows(drawn), seconds_text, "Phases of a step"),
        "importance": lambda: _importance_table(report),
    }
    for name, picture in pictures.items():
        by_row = name not in ("throughput-memory", "importance")
        words = tag("p", f"Rows are named by {keys}.", class_="narrow muted") if by_row else Markup("")
        yield _section(picture, note if by_row else "", join(words, extras[name]()))


def _section(picture: Picture, note: str, extra: Markup) -> Markup:
    words = tag("figcaption", picture.description + note)
    heading = tag("h2", picture.title, id=f"{picture.name}-heading")
    figure = tag("figure", words, tag("div", picture.inline(), class_="picture"))
    return tag("section", heading, figure, _legend(picture), extra, aria_labelledby=f"{picture.name}-heading")


def _scatter_words(report: Report) -> Markup:
    found = content.points(report)
    shown = [
        verdict for verdict in reversed(VERDICT_ORDER) if any(point.verdict == verdict for point in found)
    ]
    legend = [tag("li", scatter.shape(verdict), " ", verdict) for verdict in shown]
    front = [
        tag("li", f"{point.label}: {rate_text(point.tokens_per_s)} tokens/s, {bytes_text(point.peak_bytes)}")
        for point in scatter.front_of(found)
    ]
    told = tag("p", "On the dashed line nothing is both faster and smaller:", class_="muted")
    return (
        join(tag("ul", *legend, class_="legend"), told, tag("ol", *front, class_="front"))
        if front
        else Markup("")
    )


def _parts(rows: Sequence[tuple[Name, Mapping[str, float]]], form: Any, caption: str) -> Markup:
    names = content.part_names(parts for _, parts in rows)
    lines = [[called.full, *(form(parts.get(name)) for name in names)] for called, parts in rows]
    return _data(caption, ["configuration", *names], lines)


def _legend(picture: Picture) -> Markup:
    entries = [
        tag("li", tag("span", class_=f"key {kind}", aria_hidden="true"), name)
        for kind, name in picture.legend
    ]
    return tag("ul", *entries, class_="legend") if entries else Markup("")


def _importance_table(report: Report) -> Markup:
    lines = [[axis, f"{share:.1%}"] for axis, share in report.importance.items()]
    return _data("Share of the objective's variation", ["axis", "share"], lines)


def _comparison_table(report: Report) -> Markup:
    comparison = report.comparison
    assert comparison is not None, "only a report with a comparison has this section"
    rows = [tag("tr", *_comparison_cells(words.cells(row), row.answer)) for row in comparison.rows]
    head = tag("tr", *(_heading(name) for name in words.HEADINGS))
    table = tag(
        "table", tag("caption", words.summary(comparison)[0]), tag("thead", head), tag("tbody", *rows)
    )
    reasons = [tag("li", reason) for reason, _ in words.grouped_reasons(comparison.rows)]
    said = [tag("li", line) for line in words.summary(comparison)[1:]]
    return join(_scroll(table, "Comparison"), tag("ul", *reasons, *said, class_="plain"))


def _comparison_cells(cells: Sequence[str], answer: str) -> list[Markup]:
    name, found, *others = cells
    return [
        tag("td", name),
        tag("td", _badge(found, answer), class_="word"),
        *(tag("td", cell) for cell in others),
    ]


def _table(report: Report) -> Markup:
    keys = ("configuration", *_COLUMNS)
    head = tag("tr", *(_heading(key) for key in keys))
    rows = [tag("tr", *_cells(s, report.ranking.mark(s.trial_id))) for s in report.summaries]
    caption = tag("caption", f"{plural(len(rows), 'configuration')}, the best first; spread is over repeats")
    table = tag("table", caption, tag("thead", head), tag("tbody", *rows))
    heading = tag("h2", "Configurations", id="configurations")
    return tag("section", heading, _scroll(table, "Configurations"), aria_labelledby="configurations")


def _cells(summary: ConfigSummary, mark: str) -> list[Markup]:
    verdict = summary.verdict if summary.ok else outcome_text(summary)
    sign = {"*": "★ ", "≈": "≈ "}.get(mark)
    name = join(sign, tag("strong", label(summary))) if sign else label(summary)
    style_class = summary.verdict if summary.ok else "failed"
    return [
        tag("td", name),
        tag("td", rate_text(summary.number("tokens_per_s"))),
        tag("td", spread_text(summary.spread("tokens_per_s"))),
        tag("td", seconds_text(summary.number("median_step_s"))),
        tag("td", bytes_text(summary.number("peak_device_bytes"))),
        tag("td", bytes_text(summary.number("peak_host_bytes"))),
        tag("td", _badge(verdict, style_class), class_="word"),
        tag("td", ratio_text(summary.number("error_ratio"))),
    ]


def _failures(report: Report) -> Markup:
    failed = [summary for summary in report.summaries if summary.outcome != "ok"]
    if not failed:
        return Markup("")
    lines = [
        tag("li", f"{outcome_text(s)}: {label(s)}: {failure_message(s) or 'no message'}") for s in failed
    ]
    return tag("section", tag("h2", "What did not finish"), tag("ul", *lines, class_="plain"))


def _footer(report: Report) -> Markup:
    method = (
        f"Made by zbench {__version__}. Every configuration ran in processes of its own; its verdict "
        "compares the parameters after the timed steps with plain PyTorch's: identical bits, or an error "
        "ratio against a float64 run of at most 4 (equivalent), above (drifted), or above 100 (wrong)."
    )
    return tag("footer", tag("p", method, class_="muted"))


def _data(caption: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> Markup:
    """Return the figures behind a picture as a table that opens on demand."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    rows = [tag("tr", *(tag("td", cell) for cell in line)) for line in lines]
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *rows))
    return tag("details", tag("summary", "The figures as a table"), _scroll(table, caption))


def _scroll(table: Markup, name: str) -> Markup:
    """Return a table that scrolls sideways on a narrow screen, by keyboard too."""
    return tag("div", table, class_="scroll", role="region", aria_label=name, tabindex="0")


def _heading(name: str) -> Markup:
    return tag("th", name, scope="col", class_="word" if name in ("answer", "verdict") else None)


def _badge(word: str, kind: str) -> Markup:
    return tag("span", word, class_=f"badge {kind}")
