"""HTML and SVG by construction: what is not Markup is escaped, so text from a file stays text."""

import re
from html import escape

_VOID = {"br", "col", "hr", "meta"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. Plain children and all attributes are escaped; an attribute of None is left out.

    A trailing underscore is dropped from attribute names and others become hyphens: `class_`, `text_anchor`.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{shown}>")
    return Markup(f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Return children after each other, those that are not Markup escaped."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children))


def text(value: str) -> Markup:
    """Return text escaped, without characters that neither HTML nor XML can hold."""
    return Markup(escape(_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", value), quote=True))


def _attribute(value: str | float) -> str:
    if isinstance(value, str):
        return text(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")
