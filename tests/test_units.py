import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.units import format_bytes, format_clock, format_seconds, parse_count, parse_duration


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("5e8", 500_000_000),
        ("500_000_000", 500_000_000),
        ("512Mi", 512 << 20),
        ("5M", 5_000_000),
        ("300B", 300 * 10**9),
        ("1.5 T", 1500 * 10**9),
        ("70b", 70 * 10**9),
    ],
)
def test_counts_read_as_people_write_them(text: object, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(
    ("text", "seconds"), [("120s", 120), ("20min", 1200), ("500ms", 0.5), ("2h", 7200), (3, 3)]
)
def test_durations_take_units(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["x", "5Xi", "1.5", "nan", True])
def test_what_is_no_whole_count_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="expected a"):
        parse_count(text)


@pytest.mark.parametrize("text", ["5GB", "5 GiB", "5kB", "80MiB"])
def test_a_unit_of_bytes_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="is a unit of bytes; of a count, leave B out"):
        parse_count(text)


@given(st.integers(0, 10**18), st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi"]))
def test_a_count_with_a_suffix_is_exact(number: int, suffix: str) -> None:
    factor = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[suffix]
    assert parse_count(f"{number}{suffix}") == number * factor
    assert parse_count(f"{number:_}{suffix}") == number * factor


@given(st.integers(0, 10**15))
def test_printed_bytes_read_back_within_three_digits(count: int) -> None:
    assert parse_bytes_loosely(format_bytes(count)) == pytest.approx(count, rel=0.006)
    assert "e" not in format_bytes(count)


def parse_bytes_loosely(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]


@given(st.floats(1e-6, 1e9) | st.floats(0.999, 1.0) | st.floats(999, 1001))
def test_printed_seconds_read_back_within_three_digits(seconds: float) -> None:
    text = format_seconds(seconds)
    assert "e" not in text
    number, unit = text.split()
    assert float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[unit] == pytest.approx(seconds, rel=0.006)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0846, "84.6 ms"),
        (1.234, "1.23 s"),
        (0.9996, "1 s"),
        (1234.0, "1234 s"),
    ],
)  # fmt: skip
def test_seconds_print_with_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_a_time_left_reads_as_a_clock() -> None:
    assert [format_clock(v) for v in (59.4, 59.6, 3599.6, math.inf)] == [
        "0:59", "1:00", "1:00:00", "-:--"
    ]  # fmt: skip
    assert [format_clock(v) for v in (None, 5, 65, 7265)] == ["-:--", "0:05", "1:05", "2:01:05"]
