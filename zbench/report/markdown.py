"""A run as a Markdown table, for a README or an issue."""

from zbench.record.summary import ConfigSummary
from zbench.report.exports.markdown import escape
from zbench.report.html.content import Report
from zbench.report.labels import label, short_ids
from zbench.report.text import bytes_text, outcome_text, rate_text, ratio_text, seconds_text, spread_text

_HEADINGS = (
    "configuration",
    "trial",
    "tokens/s",
    "spread",
    "median step",
    "peak device",
    "peak host",
    "verdict",
    "error ratio",
)


def render(report: Report) -> str:
    """Return the configurations, the best first and in bold, and where they were measured."""
    facts = report.source.facts
    lines = [
        "| " + " | ".join(_HEADINGS) + " |",
        "| --- |" + " ---: |" * (len(_HEADINGS) - 1),
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
    name = escape(label(summary))
    return [
        f"**{name}**" if is_best else name,
        escape(trial),
        rate_text(summary.number("tokens_per_s")),
        spread_text(summary.spread("tokens_per_s")),
        seconds_text(summary.number("median_step_s")),
        bytes_text(summary.number("peak_device_bytes")),
        bytes_text(summary.number("peak_host_bytes")),
        summary.verdict if summary.ok else outcome_text(summary),
        ratio_text(summary.number("error_ratio")),
    ]
