"""Reads Hjson, in which DeepSpeed reads its configuration: JSON with comments, loose commas, bare words.

Syntax: https://hjson.github.io/syntax.html. A bare word is text up to the end of its line, unless it is a
number, true, false or null.
"""

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from zbench.errors import SpecError
from zbench.spec.document import MAX_DEPTH, read_document, read_text

_BLANK = re.compile(r"(?:[\s\ufeff]|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*'")
_BARE_KEY = re.compile(r"[^\s,:\[\]{}\"']+")
_LITERAL = re.compile(
    r"(true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)[ \t]*(?=[,\]}\n\r]|#|//|/\*|$)"
)
_LINE = re.compile(r"[^\n]*")


def read_foreign(path: Path) -> Any:
    """Return the data of another tool's file: YAML, TOML, JSON or, as DeepSpeed reads it, Hjson."""
    if path.suffix not in (".json", ".hjson"):
        return read_document(path).data
    text = read_text(path)
    try:
        if path.suffix == ".json":
            return read_document(path).data
        return _Reader(text, str(path)).document()
    except SpecError as error:
        if "not JSON" not in error.message:
            raise
        return _Reader(text, str(path)).document()
    except RecursionError:
        raise SpecError("nested too deeply; name another file", file=str(path)) from None


class _Reader:
    """Reads one text from its beginning to its end; `_at` is the place of the next character."""

    def __init__(self, text: str, file: str) -> None:
        self._text, self._file, self._at = text, file, 0

    def document(self) -> Any:
        """Return the data of the whole text. SpecError with the line of a mistake."""
        self._skip()
        has_braces = self._next() in ("{", "[")  # those of the outermost block may be left out
        data = self._value(0) if has_braces else self._block("", 0)
        self._skip()
        if self._at < len(self._text):
            self._fail(f"expected the end of the file, got {self._text[self._at : self._at + 20]!r}")
        return data

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self._fail("nested too deeply")
        first = self._next()
        if first == "{":
            self._at += 1
            return self._block("}", depth)
        if first == "[":
            self._at += 1
            return self._list(depth)
        if self._text.startswith("'''", self._at):
            return self._lines()
        if first in ("'", '"'):
            return self._quoted()
        if literal := _LITERAL.match(self._text, self._at):
            self._at = literal.end()
            return json.loads(literal[1])
        line = next(_LINE.finditer(self._text, self._at))[0]
        word = line.strip()
        if not word or word[0] in ",:]}":
            self._fail(f"expected a value, got {word[:20]!r}")
        self._at += len(line)
        return word

    def _block(self, end: str, depth: int) -> dict[str, Any]:
        block: dict[str, Any] = {}
        while not self._closes(end):
            key = self._key()
            self._skip()
            if self._next() != ":":
                self._fail(f"expected a colon after the key {key!r}")
            self._at += 1
            self._skip()
            if key in block:
                self._fail(f"the key {key!r} is given twice; remove one of them")
            block[key] = self._value(depth + 1)
            self._comma()
        return block

    def _list(self, depth: int) -> list[Any]:
        values = []
        while not self._closes("]"):
            values.append(self._value(depth + 1))
            self._comma()
        return values

    def _closes(self, end: str) -> bool:
        """Return whether the block or list ends here, and step behind its end."""
        self._skip()
        closed = self._next() == end
        if closed:
            self._at += len(end)
        elif self._at >= len(self._text):
            self._fail(f"expected {end!r} before the end of the file")
        return closed

    def _comma(self) -> None:
        self._skip()
        if self._next() == ",":
            self._at += 1

    def _key(self) -> str:
        if self._next() in ("'", '"'):
            return self._quoted()
        bare = _BARE_KEY.match(self._text, self._at)
        if bare is None:
            self._fail(f"expected a key, got {self._next()!r}")
        self._at = bare.end()
        return bare[0]

    def _quoted(self) -> str:
        quoted = _QUOTED.match(self._text, self._at)
        if quoted is None:
            self._fail("a quote has no end on its line")
        self._at = quoted.end()
        inner = quoted[0][1:-1]
        if quoted[0][0] == "'":
            inner = inner.replace("\\'", "'").replace('"', '\\"')
        try:
            return str(json.loads(f'"{inner}"'))
        except json.JSONDecodeError as error:
            self._fail(error.msg)

    def _lines(self) -> str:
        end = self._text.find("'''", self._at + 3)
        if end < 0:
            self._fail("''' has no end")
        text = self._text[self._at + 3 : end]
        self._at = end + 3
        return "\n".join(line.strip() for line in text.strip().splitlines())

    def _skip(self) -> None:
        self._at = next(_BLANK.finditer(self._text, self._at)).end()

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _fail(self, message: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        raise SpecError(f"neither JSON nor Hjson: {message}; correct the syntax", file=self._file, line=line)
