"""The console that reports are printed on."""

import pytest

from zbench.report.screen import Screen


def test_a_screen_prints_on_stdout_and_colours_no_numbers_or_addresses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "1.5 'two' None https://example.org"
    Screen(width=80, force_terminal=True).print(text)
    assert capsys.readouterr() == (f"{text}\n", "")
