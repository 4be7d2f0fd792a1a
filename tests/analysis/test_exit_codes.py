"""Which doubt ends a comparison with 3: by its own name, or by `inconclusive`, which names them all."""

import pytest

from zbench.analysis.compare import FAIL_ON, FailOn, Settings, compare_runs

from .synthetic import results, trial

EVEN = [0.1, 0.101, 0.099, 0.1, 0.1005, 0.0995]
DOUBTS = {
    "suspected": trial([1.06 * step for step in EVEN]),
    "inconclusive": trial([1.04 * step for step in EVEN]),
    "unchecked": trial(EVEN, verdict="unchecked"),
}


@pytest.mark.parametrize("word", FAIL_ON)
@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_doubt_fails_by_its_own_name_and_by_inconclusive(doubt: str, word: FailOn) -> None:
    settings = Settings(run_noise=0.01, fail_on=frozenset({word}))
    found = compare_runs(results(trial(EVEN)), results(DOUBTS[doubt], "head"), settings)
    assert [row.answer for row in found.rows] == [doubt]
    assert found.exit_code == (3 if word in (doubt, "inconclusive") else 0)
