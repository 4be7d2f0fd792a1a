"""How the file of another tool becomes a sweep: values are read as that tool reads them, nothing vanishes.

A note says of each key that has no equal here why, and what its loss changes (`Effect`).
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from zbench.errors import UsageError, closest
from zbench.spec.base import SpecModel
from zbench.spec.keys import Key, assign, canonical_value, holder, leaves
from zbench.spec.problems import problems_of, shown, unwritable

Effect = Literal["training", "speed", "rest"]
"""What the loss of a key changes: what is trained; memory or speed; neither."""
_YES = ("true", "yes", "on", "1", "y", "t")
_NO = ("false", "no", "off", "0", "n", "f")
_NUMBER = re.compile(r"\s*[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")


@dataclass(frozen=True, slots=True)
class Note:
    """What became of a key, and what that changes. In a note of `rest`, `text` may be the bare key."""

    effect: Effect
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Imported:
    """A sweep document that is being read from another tool's file, and its notes."""

    document: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)

    def put(self, path: str, value: Any, theirs: str | None = None) -> None:
        """Set a key of the sweep, such as `engine.dtype`; a list of several values becomes an axis.

        theirs: the key of the other tool, whose value is checked. UsageError, with that key.
        """
        key = tuple(path.split("."))
        if theirs is not None:
            value = checked(key, value, theirs)
        if _lists_values(key, value):
            self.document.setdefault("axes", {})[path] = value
        else:
            assign(self.document, key, value)

    def note(self, effect: Effect, text: str) -> None:
        """Add a note."""
        self.notes.append(Note(effect, text))

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value of a key: of the document, or the list of its axis."""
        axes = self.document.get("axes", {})
        if path in axes:
            return axes[path]
        value: Any = self.document
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return default if value is None else value


class Table:
    """The keys of one tool, from its TOML file beside this one."""

    def __init__(self, written: dict[str, Any]) -> None:
        self.written = written
        self.plain: dict[str, str] = written.get("plain", {})
        """Their key -> the key of a sweep that has the same value."""
        self.read: list[str] = written.get("read", [])
        """Keys that the rules of the tool's module read."""
        reasons = [*written.get("training", {}), *written.get("speed", {}), *written.get("rest", [])]
        self.known: list[str] = sorted({*self.plain, *self.read, *reasons})

    @classmethod
    def of(cls, tool: str) -> Self:
        """Return the table of a tool."""
        return cls(tomllib.loads(Path(__file__).with_name(f"{tool}.toml").read_text(encoding="utf-8")))

    def reason(self, key: str) -> tuple[Effect | None, str]:
        """Return what the loss of a key changes, and why it has no equal here; None for other keys."""
        effects: tuple[Effect, ...] = ("training", "speed")
        for effect in effects:
            if key in self.written.get(effect, {}):
                return effect, self.written[effect][key]
        return ("rest", "") if key in self.written.get("rest", []) else (None, "")


def flat(config: object, tool: str) -> dict[str, Any]:
    """Return dotted key -> value of a configuration, without nulls. UsageError if it is no mapping."""
    if not isinstance(config, Mapping):
        raise UsageError(f"expected {tool} configuration, a mapping of keys; got {shown(config)}")
    plain = {str(key): value for key, value in config.items()}
    for problem in unwritable(plain):
        raise UsageError(f"{'.'.join(str(part) for part in problem.path)}: {problem.message}")
    return {key: value for key, value in leaves(plain) if value is not None}


def checked(path: Key, value: Any, theirs: str) -> Any:
    """Return the value of another tool's key as that of `path`; a list of values as a list, each once.

    A quoted number or boolean is read as one. UsageError, with the key and the accepted values.
    """
    if value and _lists_values(path, value):
        distinct: list[Any] = []
        for one in value:
            if isinstance(one, list) and path[-1] != "betas":
                raise UsageError(f"{theirs}: expected a value or a list of values, got {value}; correct it")
            canonical = checked(path, one, theirs)
            if canonical not in distinct:
                distinct.append(canonical)
        return distinct[0] if len(distinct) == 1 else distinct
    problem = ""
    for candidate in _readings(value):
        try:
            return canonical_value(path, candidate)
        except ValidationError as error:
            listed = problems_of(error, {path[-1]: candidate}, holder(path) or SpecModel)
            problem = problem or next(listed).message.partition("; for example")[0]
    raise UsageError(f"{theirs}: {problem if ';' in problem else problem + '; correct it'}")


def _lists_values(path: Key, value: Any) -> bool:
    """Whether a value is a list of values of a key; one pair of betas is a list, too, and one value."""
    return isinstance(value, list) and (path[-1] != "betas" or isinstance(value[0], list))


def as_list(value: Any) -> list[Any]:
    """Return a list of values as it is, and one value in a list."""
    return value if isinstance(value, list) else [value]


def _readings(value: Any) -> Iterator[Any]:
    """Yield a value, and what it may mean: a quoted number or boolean, a whole number written as 4.0."""
    yield value
    number = value
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = float(value)
        yield number
    if isinstance(number, int | float) and not isinstance(number, bool):
        if abs(number) < 2**63 and number == int(number):
            yield int(number)
        if not isinstance(value, str):
            yield float(number)
    if isinstance(value, list):
        yield [float(one) if isinstance(one, str) and _NUMBER.fullmatch(one) else one for one in value]
    truth = _truth(value)
    if truth is not None:
        yield truth


def _truth(value: object) -> bool | None:
    text = str(value).strip().lower()
    return True if text in _YES else False if text in _NO else None


def boolean(value: object, theirs: str) -> bool:
    """Return a switch, also if it is quoted. UsageError, with its key."""
    truth = None if isinstance(value, list | Mapping) else _truth(value)
    if truth is None:
        raise UsageError(f"{theirs}: expected true or false, got {shown(value)}; correct it")
    return truth


def number(value: object, theirs: str) -> float:
    """Return a finite number, also if it is quoted. UsageError, with its key."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise UsageError(f"{theirs}: expected a number, got {shown(value)}; correct it")
    return value


def whole(value: object, theirs: str) -> int:
    """Return a whole number, also if it is quoted. UsageError, with its key."""
    read = number(value, theirs)
    if read != int(read):
        raise UsageError(f"{theirs}: expected a whole number, got {shown(value)}; correct it")
    return int(read)


def block(value: object, theirs: str) -> dict[str, Any]:
    """Return a mapping of keys; an absent one is empty. UsageError, with its key."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{theirs}: expected a mapping of keys, got {shown(value)}; correct it")
    return {str(key): inner for key, inner in value.items()}


def each(value: Any, read: Callable[[Any, str], Any], theirs: str) -> Any:
    """Return `read` of a value, or of each value in a list, as the autotuners of other tools write them."""
    if isinstance(value, list) and value:
        values: list[Any] = []
        for one in value:
            if (parsed := read(one, theirs)) not in values:
                values.append(parsed)
        return values[0] if len(values) == 1 else values
    return read(value, theirs)


def reason_of_unknown(key: str, keys: Sequence[str], tool: str, refuses: bool) -> Note:
    """Return the note on a key that the tool does not have: in the wrong place, mistyped, or unknown.

    keys: all of the tool, as dotted paths. refuses: the tool refuses unknown keys beside this one.
    """
    does = "refuses" if refuses else "ignores"
    parent, _, leaf = key.rpartition(".")
    places = [name for name in keys if f".{name}".endswith(f".{key}") and name != key]
    if not places:
        places = [name for name in keys if name.rpartition(".")[2] == leaf and leaf not in _COMMON]
    if places:
        where = f"this stands in the wrong place, where {tool} {does} it; move it to {places[0]}"
        return Note(_effect_of(places[0]), f"{key}: {where}")
    beside = [name for name in keys if name.rpartition(".")[0] == parent]
    similar = _similar(leaf, beside, 0.8) or _similar(leaf, keys, 0.85)
    if similar:
        return Note(_effect_of(similar), f"{key}: no key of {tool}, which {does} it; did you mean {similar}?")
    return Note("training", f"{key}: no key of {tool}, which {does} it") if refuses else Note("rest", key)


def _similar(leaf: str, keys: Sequence[str], cutoff: float) -> str | None:
    """Return the key whose last part is most similar to `leaf`, or None if none is similar."""
    leaves_of = {name.rpartition(".")[2]: name for name in keys}
    match = closest(leaf, leaves_of, cutoff)
    return None if match is None else leaves_of[match]


def _effect_of(key: str) -> Effect:
    return "speed" if key.startswith("zero_optimization.") and not key.endswith(".stage") else "training"


_COMMON = ("enabled", "params", "type", "device", "steps", "name", "lr")
"""Leaves that many blocks have: their place says nothing."""
