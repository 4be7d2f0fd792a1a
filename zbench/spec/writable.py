"""What no record can hold, though Python can: records are UTF-8 and JSON."""

import math
from collections.abc import Iterator
from typing import Any

from zbench.spec.problems import KeyPath, Problem, shown


def unwritable(value: Any, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield each place that holds what no record can: half a character, an infinite number, NaN."""
    if isinstance(value, str):
        if not value.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in value):
            yield Problem(path, f"{shown(value)} is no valid text; correct it")
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, f"expected a finite number, got {value}; correct it")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from unwritable(key, path)
            yield from unwritable(inner, (*path, str(key).encode(errors="replace").decode()))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unwritable(inner, (*path, index))
