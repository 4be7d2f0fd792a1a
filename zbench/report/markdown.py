"""A run as a Markdown table, for a README or an issue."""

from zbench.record.summary import ConfigSummary
from zbench.report.exports.markdown import escape
from zbench.report.html.content import Report
from zbench.report.labels import CONFIGURATION_COLUMNS, configuration_cells, short_ids


def render(report: Report) -> str:
    """Return the configurations, the best first and in bold, and where they were measured."""
    facts = report.source.facts
    lines = [
        "| " + " | ".join(CONFIGURATION_COLUMNS) + " |",
        "| --- |" + " ---: |" * (len(CONFIGURATION_COLUMNS) - 1),
        *(
            "| " + " | ".join(_cells(summary, name, summary is report.winner)) + " |"
            for summary, name in zip(report.summaries, short_ids(report.summaries), strict=True)
        ),
        "",
    ]
    machine = ", ".join(str(facts[key]) for key in ("cpu", "torch") if facts.get(key))
    return "\n".join(
        [*lines, escape(f"Run {', '.join(report.source.run_ids) or report.source.name}; {machine}")]
    )


def _cells(summary: ConfigSummary, trial: str, is_best: bool) -> list[str]:
    name, trial, *figures = configuration_cells(summary, trial)
    return [f"**{escape(name)}**" if is_best else escape(name), escape(trial), *figures]
