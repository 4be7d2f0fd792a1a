"""The limits that fit, by bisection; a point that cannot be simulated decides nothing."""

from dataclasses import dataclass, field

import pytest

from tests.making import make_trial
from zbench.app.estimate_columns import estimate_table
from zbench.estimate.result import Capacity, Estimate, NotSimulated
from zbench.estimate.row import EstimateRow
from zbench.estimate.search import TOKENS, limits
from zbench.spec.trial import TrialSpec


@dataclass
class Formula:
    """Its peak is 960 bytes of state over the ranks, 10 a sample, and 1 for TOKENS beyond the first."""

    refused: set[int] = field(default_factory=set)

    def of(self, trial: TrialSpec) -> Estimate | NotSimulated:
        ranks, batch = trial.run.world_size, trial.workload.micro_batch_size
        if ranks in self.refused:
            return NotSimulated("its shapes depend on data")
        peak = 960 // ranks + 10 * batch + (trial.workload.sequence_length - 1) // TOKENS
        return Estimate(peak, 4, peak, {}, {}, "backward", [], {}, None)


TRIAL = make_trial({"zero_stage": 3})
BATCH = TRIAL.workload.micro_batch_size


@pytest.mark.parametrize("ranks", [1, 7])
def test_the_smallest_world_that_fits(ranks):
    bounds = limits(Formula(), TRIAL, Capacity(960 // ranks + 10 * BATCH))
    assert bounds.smallest_world_size == ranks
    assert bounds.undecided == {}


def test_a_world_is_whole_shard_groups():
    trial = make_trial({"zero_stage": 3, "shard_group_size": 2})
    assert limits(Formula(), trial, Capacity(960 // 7 + 10 * BATCH)).smallest_world_size == 8


def test_the_largest_micro_batch_that_fits():
    state = 960 // TRIAL.run.world_size
    assert limits(Formula(), TRIAL, Capacity(state + 10 * 37)).largest_micro_batch == 37
    assert limits(Formula(), TRIAL, Capacity(10**9)).largest_micro_batch == 4096


def test_none_fits_only_where_every_point_was_simulated():
    bounds = limits(Formula(), TRIAL, Capacity(5))
    assert (bounds.smallest_world_size, bounds.largest_micro_batch) == (None, None)
    assert bounds.undecided == {}


def test_a_point_that_is_not_simulated_is_named():
    bounds = limits(Formula(refused={8}), TRIAL, Capacity(960 // 7 + 10 * BATCH))
    assert bounds.smallest_world_size is None
    assert bounds.undecided == {"smallest_world_size": "world_size=8: its shapes depend on data"}


def test_the_longest_sequence_that_fits():
    state = 960 // TRIAL.run.world_size + 10 * BATCH
    assert limits(Formula(), TRIAL, Capacity(state + 7)).longest_sequence == 8 * TOKENS


def test_no_sequence_is_longer_than_the_models_positions():
    formula = Formula()
    assert limits(formula, TRIAL, Capacity(10**9), positions=1000).longest_sequence == 7 * TOKENS
    assert limits(formula, TRIAL, Capacity(10**9), positions=100).longest_sequence is None


def test_a_world_fits_its_nodes_host():
    assert limits(Formula(), make_trial({}, world_size=1), Capacity(host=4 * 5)).largest_micro_batch == 4096
    assert limits(Formula(), make_trial({}, world_size=6), Capacity(host=4 * 5)).largest_micro_batch is None


def test_a_sequence_that_the_model_ends_is_no_limit_of_memory():
    few = limits(Formula(), TRIAL, Capacity(10_000), positions=4 * TOKENS)
    assert few.longest_sequence == 4 * TOKENS
    assert few.bounded_by == {"longest_sequence": "the model's maximum"}
    row = EstimateRow(TRIAL, Formula().of(TRIAL), Capacity(10_000), few)
    table = estimate_table([row])
    cells = dict(zip(table.titles, table.texts()[0], strict=True))
    assert cells["sequence"] == f"{4 * TOKENS}, the model's maximum"
    assert row.to_json()["bounded_by"] == few.bounded_by
    assert limits(Formula(), TRIAL, Capacity(1000), positions=200 * TOKENS).bounded_by == {}
