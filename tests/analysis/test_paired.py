"""What the blocks of a paired measurement and its control say."""

import math

import numpy as np
import pytest

from zbench.analysis import paired


@pytest.mark.parametrize("change", [1.0, -1.0])
def test_a_control_moved_where_its_noise_does_not_explain_it(change: float) -> None:
    """Of 3 configurations; 3.707 is the 99.5 % quantile of Student's t with 6 degrees of freedom."""
    explained = 3.7074 * 0.2 / math.sqrt(3)
    assert paired.Control(0.2, 1.001 * change * explained, 6).moved(0.01)
    assert not paired.Control(0.2, 0.999 * change * explained, 6).moved(0.01)


def test_a_control_that_moved_by_a_quarter_or_less_is_harmless() -> None:
    quarter = math.log(1.25)
    assert not paired.Control(0.001, quarter, 6).moved(0.01)
    assert paired.Control(0.001, 1.001 * quarter, 6).moved(0.01)
    assert not paired.control({}, {}).moved(0.01)


def test_a_control_needs_two_samples_before_and_after() -> None:
    for before, after in (([0.1], [0.1, 0.2]), ([0.1, 0.2], [0.1])):
        assert math.isnan(paired.control({"a": before}, {"a": after}).drift)


def test_linear_drift_cancels_exactly_within_a_block() -> None:
    drifting = [0.1 * 1.1**i for i in range(4)]
    for order in (paired.BASE_FIRST, paired.HEAD_FIRST):
        assert paired.block_difference(order, drifting) == pytest.approx(0.0, abs=1e-15)
    factors = [2 if side == "head" else 1 for side in paired.BASE_FIRST]
    slower = [seconds * factor for seconds, factor in zip(drifting, factors, strict=True)]
    assert paired.block_difference(paired.BASE_FIRST, slower) == pytest.approx(math.log(2))


def test_replicates_in_turns_ignore_what_both_samples_of_a_pair_share() -> None:
    rng = np.random.default_rng(3)
    for order in (paired.BASE_FIRST, paired.HEAD_FIRST):
        logs = rng.normal(0, 0.01, (4000, 4))
        values = [paired.replicates_in_turns(order, list(np.exp(one)))[0] for one in logs]
        assert np.std(values) == pytest.approx(math.sqrt(2) * 0.01, rel=0.05), "as one replicate of a process"
        moved = logs + rng.normal(0, 1, (4000, 2)).repeat(2, axis=1)
        assert [paired.replicates_in_turns(order, list(np.exp(one)))[0] for one in moved] == pytest.approx(
            values
        )
        slower = logs + math.log(2) * np.array([side == "head" for side in order])
        assert [paired.replicates_in_turns(order, list(np.exp(one)))[0] for one in slower] == pytest.approx(
            values
        )


def test_replicates_are_the_second_process_of_a_side_less_its_first() -> None:
    seconds = [math.exp(log) for log in (0.1, 0.2, 0.4, 0.8)]
    for order in (paired.BASE_FIRST, paired.HEAD_FIRST):
        taken = [(side, math.log(s)) for side, s in zip(order, seconds, strict=True)]
        base, head = ([log for of, log in taken if of == side] for side in paired.SIDES)
        expected = base[1] - base[0], head[1] - head[0]
        assert paired.block_replicates(order, seconds) == pytest.approx(expected)
        assert paired.block_difference(order, seconds) == pytest.approx(sum(head) / 2 - sum(base) / 2)


def test_control_tells_noise_from_drift() -> None:
    found = paired.control({"a": [0.10, 0.11]}, {"a": [0.20, 0.22]})
    assert found.drift == pytest.approx(math.log(2))
    assert found.noise == pytest.approx(math.log(1.1) / math.sqrt(2))
