"""A series in one line of a terminal."""

from zbench.report.text import sparkline


def test_bars_rise_from_the_lowest_value_to_the_highest() -> None:
    assert sparkline([1, 2, 3]) == "▁▅█"


def test_equal_values_are_in_the_middle() -> None:
    assert sparkline([5, 5]) == "▄▄"


def test_the_last_values_are_shown() -> None:
    assert sparkline(range(100), width=8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(range(100))) == 40
