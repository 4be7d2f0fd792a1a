"""Problems of a specification: the path, what was expected, what was found, and the remedy."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zbench.errors import SpecError, closest, nearest
from zbench.spec.keys import known_paths, model_at

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake and its path, such as ("axes", "zero_stage", 1)."""

    path: KeyPath
    message: str


class ProblemsError(ValueError):
    """Mistakes without file and line, which the loader adds."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(SpecError(p.message, key=key_text(p.path))) for p in self.problems))

    @classmethod
    def at(cls, path: KeyPath, message: str) -> Self:
        """Return the error for one mistake."""
        return cls([Problem(path, message)])


class Attempts:
    """Collects the ProblemsErrors of several `with` blocks, so that one error lists them all."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, ProblemsError):
            self._problems += error.problems
        return isinstance(error, ProblemsError)

    def check(self) -> None:
        """Raise one ProblemsError with all collected mistakes, if any."""
        check(self._problems)


def check(problems: Iterable[Problem]) -> None:
    """Raise ProblemsError if there is a problem."""
    if listed := tuple(problems):
        raise ProblemsError(listed)


def key_text(path: Sequence[str | int]) -> str:
    """Return a path as text: `axes.zero_stage[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def problems_of(error: ValidationError, data: object, model: type[BaseModel]) -> Iterator[Problem]:
    """Yield one Problem for each invalid path in `data`; the errors of a union's members are merged."""
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in error.errors():
        by_path.setdefault(_place(detail, data), []).append(detail)
    for path, details in by_path.items():
        if details[0]["type"] == "extra_forbidden":
            yield Problem(path, _unknown_key(path, model))
        elif details[0]["type"] == "missing":
            yield Problem(path, "this key is missing; add it")
        else:
            yield Problem(path, _expected(details) + _example(path, model, details[0]))


def _place(detail: ErrorDetails, data: object) -> KeyPath:
    """Return pydantic's location of an error without the names of union members that it adds."""
    path: list[str | int] = []
    for part in detail["loc"]:
        try:
            data = data[part]  # type: ignore[index]
        except (LookupError, TypeError):
            if detail["type"] != "missing" or part != detail["loc"][-1]:
                continue
            data = None
        path.append(part)
    return tuple(path)


def _unknown_key(path: KeyPath, model: type[BaseModel]) -> str:
    name = str(path[-1])
    fields = list(model_at(path, model).model_fields)
    fields += ["extends"] if len(path) == 1 and "workload" in fields else []  # read before the rest
    if closest(name, fields) is None:
        elsewhere = next((".".join(full) for full in known_paths() if full[-1] == name), None)
        if elsewhere:
            return f"unknown key here; move it to `{elsewhere}`"
        return f"unknown key; expected one of {', '.join(fields)}"
    return f"unknown key{nearest(name, fields)}; rename or remove it"


def _expected(details: list[ErrorDetails]) -> str:
    if details[0]["type"] == "value_error":
        return str(details[0]["ctx"]["error"])
    expectations = list(dict.fromkeys(_wanted(detail) for detail in details))
    return f"expected {' or '.join(expectations)}, got {shown(details[0]['input'])}"


_TYPES = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "bool_type": "true or false", "string_type": "text", "list_type": "a list",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys", "tuple_type": "a list", "finite_number": "a finite number",
    "union_tag_not_found": "a list of values, or a mapping with `low` and `high`",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"), "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"), "less_than": ("less than", "lt"),
}  # fmt: skip


def _wanted(detail: ErrorDetails) -> str:
    """Return what was expected, as a noun phrase."""
    kind = detail["type"]
    context = detail.get("ctx", {})
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"a number of {words} {context[key]:g}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind in ("too_long", "too_short"):
        return f"{context.get('max_length', context.get('min_length'))} values"
    if kind == "string_pattern_mismatch":
        return "letters, digits, '.', '_' and '-' (at most 100, not beginning with '.' or '-')"
    return _TYPES.get(kind, detail["msg"].removeprefix("Input should be "))


def _example(path: KeyPath, model: type[BaseModel], detail: ErrorDetails) -> str:
    """Return the remedy: the most similar choice, or the default as an example."""
    if detail["type"] == "value_error" and ";" in str(detail["ctx"]["error"]):
        return ""
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        choices = str(detail["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")
        choice = closest(detail["input"], choices)
        if choice:
            return f"; did you mean {choice}?"
    name = str(path[-1]) if path else ""
    field = model_at(path, model).model_fields.get(name)
    if field is None or field.is_required():
        return "; correct it"
    default = field.get_default()
    if isinstance(default, BaseModel | dict | list) or default is None:
        return "; correct it or leave it out"
    plain = list(default) if isinstance(default, tuple) else default
    return f"; for example `{name}: {str(plain).lower() if isinstance(plain, bool) else plain}`"


def is_too_large(value: object) -> bool:
    """Whether a value is an integer of more bits than any key needs: Python refuses to write long ones."""
    return isinstance(value, int) and value.bit_length() > 4096


def shown(value: object) -> str:
    """Return a value as text for an error message, of at most 60 characters."""
    if is_too_large(value):
        return "a number of too many digits"
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def unwritable(value: Any, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield a Problem for each value that a record cannot store: a lone surrogate, infinity, NaN."""
    if is_too_large(value):
        yield Problem(path, "a number of too many digits cannot be stored; correct it")
    elif isinstance(value, str):
        if not value.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in value):
            yield Problem(path, f"{shown(value)} is not valid text; correct it")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"expected a finite number, got {value}; correct it")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from unwritable(key, path)
            yield from unwritable(inner, (*path, str(key).encode(errors="replace").decode()))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unwritable(inner, (*path, index))
