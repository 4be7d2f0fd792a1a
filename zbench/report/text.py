"""Figures, points and names as people read them; text from files, models and errors as printable text.

Everything that a command prints passes `printable`, because `zbench.cli.console` and `zbench.report.screen`
call it on all that they write. Renderers call it earlier, too, where a column's width depends on the text.
"""

import json
import math
import re
import unicodedata
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from zbench.spec.metrics import METRICS, RATES

if TYPE_CHECKING:  # nothing heavy is imported: the command line prints its help through this module
    from zbench.analysis.history import Trial
    from zbench.record.record import Record
    from zbench.record.summary import ConfigSummary

_ROUND = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def outcome_text(trial: "Record | ConfigSummary") -> str:
    """Return how a trial ended; `pruned`, not `timeout`, if a search ended it because it was slow."""
    return "pruned" if trial.error is not None and trial.error.kind == "pruned" else trial.outcome


def axes_text(axes: dict[str, Any]) -> str:
    """Return a point as `zero_stage=1 reduce_bucket_size=5M`."""
    return (
        " ".join(f"{printable(key)}={value_text(value)}" for key, value in axes.items())
        or "(the one configuration)"
    )


def values_text(axes: dict[str, Any]) -> str:
    """Return a point's values without keys, for narrow places."""
    return " · ".join(value_text(value) for value in axes.values()) or "(the one configuration)"


def value_text(value: Any) -> str:
    """Return an axis value as in a sweep file: `5M` for 5000000, `default` for None."""
    if value is None:
        return "default"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        for unit, letter in _ROUND:
            if value % unit == 0:
                return f"{value // unit}{letter}"
    if isinstance(value, dict) and value:
        from zbench.spec.keys import leaves

        return ",".join(f"{printable(key)}:{value_text(inner)}" for key, inner in leaves(value))
    return printable(value) if isinstance(value, str) else json.dumps(value)


def result_text(trial: "ConfigSummary") -> str:
    """Return a configuration's verdict, or its outcome where that is worse."""
    is_judged = trial.outcome == "ok" or trial.verdict in ("drifted", "wrong")
    return trial.verdict if is_judged else outcome_text(trial)


def figure_text(trial: "ConfigSummary", metric: str) -> str:
    """Return a metric of a configuration with its unit; `-` where it was not measured."""
    return METRICS[metric].format(trial.metric(metric))


def throughput_text(trial: "ConfigSummary") -> str:
    """Return a configuration's rate as `1,234 tokens/s`; samples or steps where tokens are not known."""
    from zbench.record.summary import known_rate

    rate = known_rate([trial])
    return f"{figure_text(trial, rate)} {RATES[rate]}"


def started_text(started: str | None) -> str:
    """Return when a run started, as `2026-01-31 12:34`; empty where that is not known."""
    return (started or "")[:16].replace("T", " ")


def commit_text(commit: str | None) -> str:
    """Return a commit's short hash; `+` marks a working tree with changes."""
    if commit is None:
        return ""
    bare = printable(commit.removesuffix("+changes"))
    return bare[:_SHORT_COMMIT] + ("+" if commit.endswith("+changes") else "")


def plural(count: int, noun: str) -> str:
    """Return `1 repeat` or `2 repeats`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_LONGEST_SHORT = 30
_SHORT_COMMIT = 9
_SHORTEST_ID = 6


def label(trial: "Trial") -> str:
    """Return the axes as `key=value` words, or the trial id if no axis varies."""
    return axes_text(trial.axes) if trial.axes else printable(trial.trial_id)


def short_label(trial: "Trial") -> str:
    """Return the axes' values without keys, cut off for narrow screens."""
    text = values_text(trial.axes) if trial.axes else printable(trial.trial_id)
    return text if len(text) <= _LONGEST_SHORT else f"{text[: _LONGEST_SHORT - 1]}…"


def failure_message(trial: "Record | ConfigSummary") -> str:
    """Return why a trial failed, in one line; empty where nothing is known."""
    return printable(trial.error.message.strip().split("\n")[0]) if trial.error is not None else ""


def failure_text(trial: "ConfigSummary") -> str:
    """Return the whole message of a failed configuration, also where its record has none."""
    message = trial.error.message.strip() if trial.error is not None else ""
    return printable_lines(message) or "no message was recorded"


def short_ids(trials: "Sequence[ConfigSummary]") -> list[str]:
    """Return the start of each trial's id, long enough to be unique; `--trial` accepts it."""
    ids = [printable(trial.trial_id) for trial in trials]
    starts = ([text[:length] for text in ids] for length in count(_SHORTEST_ID))
    return next(short for short in starts if len(set(short)) == len(set(ids)))


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return the last `width` values as bars from the lowest to the highest; equal ones are in the middle.

    A value that is not finite is a gap.
    """
    shown = list(values)[-width:]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def bar(value: float) -> str:
        if not math.isfinite(value):
            return " "
        return _BARS[3 if high == low else round((len(_BARS) - 1) * (value - low) / (high - low))]

    return "".join(map(bar, shown))


_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of control, format (such as bidirectional), surrogate and line separator characters."""


def printable(text: str) -> str:
    """Return text as one line, every control character visible: a newline as `\\n`, an escape as `\\x1b`."""
    return text if text.isprintable() else "".join(map(_visible, text))


def printable_lines(text: str) -> str:
    """Return text with its line breaks kept, tabs as spaces, and every other control character visible."""
    return "\n".join(printable(line) for line in text.replace("\t", "    ").split("\n"))


def _visible(char: str) -> str:
    hidden = unicodedata.category(char) in _HIDDEN
    return char.encode("unicode_escape").decode("ascii") if hidden else char


def xml_text(text: str) -> str:
    """Return text without the characters that XML 1.0 cannot hold."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
