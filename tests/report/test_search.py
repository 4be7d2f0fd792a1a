"""The findings of a search: what is coloured, and when a best is compared with another."""

import pytest

from zbench.report.table import print_search

from .test_kept import RUN, shown

DOCUMENT = {
    "stopped": "as asked", "best": "id1", "runner_up": "id2", "lead": 0.125, "separated": True,
    "indistinguishable": ["id1"], "pareto": [], "nearest_miss": None, "importance": {}, "hopeless": [],
}  # fmt: skip


def test_that_there_is_no_best_is_red_and_every_other_heading_is_bold() -> None:
    text = shown(lambda screen: print_search(screen, DOCUMENT | {"best": None}, RUN), terminal=True)
    assert "\x1b[1;31mno best " in text
    assert "\x1b[1mstopped " in text


@pytest.mark.parametrize(
    ("runner_up", "lead"), [(None, None), (None, 0.125), ("id2", None), ("not measured", 0.125)]
)
def test_a_best_without_a_measured_rival_is_compared_with_none(
    runner_up: str | None, lead: float | None
) -> None:
    document = DOCUMENT | {"runner_up": runner_up, "lead": lead}
    assert "measured again" not in shown(lambda screen: print_search(screen, document, RUN))
    assert "measured again" in shown(lambda screen: print_search(screen, DOCUMENT, RUN))
