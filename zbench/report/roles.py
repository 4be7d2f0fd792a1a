"""What is good and what is bad, and how each medium shows it: terminal, Markdown, light and dark pages.

A verdict, an outcome or an answer has a role; nothing else knows a colour of its own.
"""

from collections.abc import Mapping
from typing import NamedTuple

from rich.text import Text


class Role(NamedTuple):
    """How a role looks: a Rich style, a sign in Markdown, and colours on light and on dark ground."""

    terminal: str
    sign: str
    light: str
    dark: str


ROLES = {
    "good": Role("green", "✅", "#0b7a4b", "#3fc380"),
    "fine": Role("green", "✅", "#1d6fb8", "#6cb6ff"),
    "warn": Role("bold yellow", "⚠️", "#a65f00", "#e0a43b"),
    "bad": Role("bold red", "❌", "#c0262d", "#ff7b72"),
    "none": Role("dim", "➖", "#768390", "#8b949e"),
}

VERDICTS = {"identical": "good", "equivalent": "fine", "drifted": "warn", "wrong": "bad", "unchecked": "none"}
OUTCOMES = {
    "ok": "good",
    "oom": "bad",
    "timeout": "bad",
    "crashed": "bad",
    "pruned": "none",
    "invalid": "none",
}
ANSWERS = {
    "pass": "good", "regression": "bad", "incorrect": "bad", "failed": "bad", "suspected": "warn",
    "inconclusive": "warn", "unchecked": "warn", "unmeasured": "none",
}  # fmt: skip

RESULTS: Mapping[str, str] = OUTCOMES | VERDICTS
"""Of what a configuration came to: its verdict, or how it ended."""


def role_of(text: str, roles: Mapping[str, str]) -> Role:
    """Return the role of a word, or of the word before a comma; what is not listed is bad."""
    return ROLES[roles.get(text.split(",")[0], "bad")]


def word(text: str, roles: Mapping[str, str] = RESULTS) -> Text:
    """Return a verdict, an outcome or an answer in its colour of the terminal."""
    return Text(text, role_of(text, roles).terminal)
