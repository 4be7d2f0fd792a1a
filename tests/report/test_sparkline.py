"""A series in one line of a terminal."""

from zbench.report.text import sparkline


def test_bars_rise_from_the_lowest_value_to_the_highest() -> None:
    assert sparkline([1, 2, 3]) == "▁▅█"
    assert sparkline([5, 5]) == "▄▄", "equal values are in the middle"
    assert sparkline(range(100), width=8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(range(100))) == 40, "the last values are shown"
