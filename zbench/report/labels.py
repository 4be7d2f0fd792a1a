"""The names of configurations, and the messages of failures, as one printable line."""

from collections.abc import Sequence
from itertools import count

from zbench.record.summary import ConfigSummary
from zbench.report.printable import printable
from zbench.report.text import (
    axes_text,
    bytes_text,
    outcome_text,
    rate_text,
    ratio_text,
    seconds_text,
    spread_text,
    values_text,
)

_LONGEST_SHORT = 30
_SHORTEST_ID = 6


CONFIGURATION_COLUMNS = (
    *("configuration", "trial", "tokens/s", "spread", "median step"),
    *("peak device", "peak host", "verdict", "error ratio"),
)


def configuration_cells(trial: ConfigSummary, name: str) -> list[str]:
    """Return a configuration as CONFIGURATION_COLUMNS have it; name: the id that it is shown by."""
    return [
        label(trial),
        name,
        rate_text(trial.number("tokens_per_s")),
        spread_text(trial.spread("tokens_per_s")),
        seconds_text(trial.number("median_step_s")),
        bytes_text(trial.number("peak_device_bytes")),
        bytes_text(trial.number("peak_host_bytes")),
        trial.verdict if trial.ok else outcome_text(trial),
        ratio_text(trial.number("error_ratio")),
    ]


def label(trial: ConfigSummary) -> str:
    """Return the axes as `key=value` words, or the trial id where nothing varies."""
    return axes_text(trial.axes) if trial.axes else printable(trial.trial_id)


def short_label(trial: ConfigSummary) -> str:
    """Return the axes' values alone, cut off where a narrow screen has no room for more."""
    text = values_text(trial.axes) if trial.axes else printable(trial.trial_id)
    return text if len(text) <= _LONGEST_SHORT else f"{text[: _LONGEST_SHORT - 1]}…"


def failure_message(trial: ConfigSummary) -> str:
    """Return why a trial failed, in one line; empty where nothing is known."""
    message = trial.error.message.strip() if trial.error is not None else ""
    return printable(message.split("\n")[0])


def short_ids(trials: Sequence[ConfigSummary]) -> list[str]:
    """Return the start of each trial's id, as long as all need to be told apart; `--trial` takes it."""
    ids = [printable(trial.trial_id) for trial in trials]
    starts = ([text[:length] for text in ids] for length in count(_SHORTEST_ID))
    return next(short for short in starts if len(set(short)) == len(set(ids)))
