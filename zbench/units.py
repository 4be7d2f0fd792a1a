"""Parses and formats sizes, counts and durations such as `512Mi`, `5e8`, `500_000_000`, `120s`."""

import math
import re

_BINARY = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_COUNTS = _BINARY | _THOUSANDS | {letter.upper(): size for letter, size in _THOUSANDS.items()}
_SECONDS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*?)(i?B)?\s*")


def _scaled(value: object, suffixes: dict[str, int] | dict[str, float], example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected {example}, got {value!r}")
    if isinstance(value, int | float):
        return value
    match = _NUMBER.fullmatch(value)
    suffix = match[2] + ("i" if match[3] == "iB" else "") if match else ""
    if match is None or suffix not in suffixes:
        raise ValueError(f"expected {example}, got {value!r}")
    number = match[1].replace("_", "")
    return (int(number) if number.lstrip("+-").isdigit() else float(number)) * suffixes[suffix]


def _whole(number: float, value: object, unit: str) -> int:
    if number != number or number in (float("inf"), float("-inf")) or number != int(number):
        raise ValueError(f"expected a whole number of {unit}, got {value!r}")
    return int(number)


def parse_count(value: object) -> int:
    """Return a count from `5e8`, `500_000_000`, `512Mi`, `5M` or `300B`, which is 300 billion.

    ValueError for anything else, also for a unit of bytes such as `5GB`.
    """
    example = "a number such as 5e8 or 512Mi"
    match = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[3] is None:
        return _whole(_scaled(value, _COUNTS, example), value, "elements")
    if match[2] or match[3] != "B":
        unit = match[2] + match[3]
        raise ValueError(
            f"expected {example}, got {value!r}: {unit} is a unit of bytes; of a count, leave B out"
        )
    return _whole(_scaled(match[1], _COUNTS, example) * _COUNTS["B"], value, "elements")


def parse_bytes(value: object) -> int:
    """Return bytes, rounded down, from `79.2Gi`, `1.5GB` or a plain number; ValueError for anything else."""
    size = _scaled(value, _BINARY | _DECIMAL, "a size such as 2Gi or 512Mi")
    has_unit = isinstance(value, str) and math.isfinite(size) and value.strip()[-1:].isalpha()
    return _whole(math.floor(size) if has_unit else size, value, "bytes")


def parse_rate(value: object) -> float:
    """Return a rate per second from `989e12`, `3.35T`, `64GB` or a number; ValueError for anything else."""
    return float(_scaled(value, _BINARY | _DECIMAL, "a rate such as 989e12 or 3.35T"))


def parse_duration(value: object) -> float:
    """Return seconds from `120s`, `20min`, `500ms`, `2h` or a plain number; ValueError for anything else."""
    return float(_scaled(value, _SECONDS, "a time such as 120s or 20min"))


def parse_share(value: object) -> float:
    """Return a fraction from `5%` or 0.05; ValueError for anything else."""
    if isinstance(value, str) and value.strip().endswith("%"):
        return float(_scaled(value.strip()[:-1], {"": 1}, "a share such as 5% or 0.05")) / 100
    return float(_scaled(value, {"": 1}, "a share such as 5% or 0.05"))


def format_bytes(count: float) -> str:
    """Return bytes in binary units with three significant digits, such as `1.46 GiB`."""
    size = float(count)
    if abs(size) < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1024:
            return f"{_three_digits(size)} {unit}"
    return f"{_three_digits(size / 1024)} TiB"


def format_count(count: float) -> str:
    """Return a count with three significant digits and its letter, such as `300B` or `1.5T`."""
    for letter, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{_three_digits(count / size)}{letter}"
    return _three_digits(count)


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits, such as `84.6 ms`, or whole seconds from 100 on."""
    for size, unit in ((1e-6, "us"), (1e-3, "ms")):
        if seconds < 999.5 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds)} s"


def format_clock(seconds: float | None) -> str:
    """Return a duration in seconds as `1:05` or `2:00:00`; `-:--` if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _three_digits(number: float) -> str:
    """Return a number with three significant digits and without an exponent."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:.0f}"
