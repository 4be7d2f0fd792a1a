"""The nearest known name to a misspelt one."""

import difflib
from collections.abc import Iterable


def closest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most like `name`, or None where none is near."""
    found = difflib.get_close_matches(str(name).lower(), list(known), cutoff=cutoff)
    return found[0] if found else None


def nearest(name: object, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or nothing where no known name is near."""
    found = closest(name, known)
    return f" (did you mean {found!r}?)" if found else ""
