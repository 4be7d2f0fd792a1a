"""What configurations and failures are called, safe to print wherever they came from."""

from zbench.record.summary import ConfigSummary
from zbench.report.text import axes_text, values_text

_LONGEST_SHORT = 30


def label(trial: ConfigSummary) -> str:
    """Return the axes as `key=value` words, or the trial id where nothing varies."""
    return printable(axes_text(trial.axes) if trial.axes else trial.trial_id)


def short_label(trial: ConfigSummary) -> str:
    """Return the axes' values alone, cut off where a narrow screen has no room for more."""
    text = printable(values_text(trial.axes)) if trial.axes else trial.trial_id
    return text if len(text) <= _LONGEST_SHORT else f"{text[: _LONGEST_SHORT - 1]}…"


def failure_message(trial: ConfigSummary) -> str:
    """Return why a trial failed, in one line; empty where nothing is known."""
    message = trial.error.message.strip() if trial.error is not None else ""
    return printable(message.split("\n")[0])


def printable(text: str) -> str:
    """Return text from a file without control characters, which could move a terminal's cursor."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
