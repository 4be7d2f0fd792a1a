"""The one place where foreign text (from files, models, exceptions, the command line) becomes printable.

Everything that a command prints passes here, because `zbench.cli.console` and `zbench.report.screen` call it
on all that they write. Renderers call it earlier, too, where a column's width depends on the text.
"""

import unicodedata

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
