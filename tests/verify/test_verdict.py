"""Verdicts: pure functions of what was observed."""

import dataclasses
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from tests.verify.honest import final_state
from zbench.record.record import Correctness, VerdictName
from zbench.verify.evidence import Witness
from zbench.verify.sums import digest
from zbench.verify.trajectory import Reference, Trajectory
from zbench.verify.verdict import Judgement, judge, worse

NAMES = ("first", "second", "third")
STEPS = 4
ACTIVE = torch.ones(STEPS, len(NAMES), dtype=torch.bool)


def final(size: float, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (1 + size * torch.randn(2000, generator=generator, dtype=torch.float64)).float()
        for name in NAMES
    }


@dataclass(frozen=True)
class Run:
    """A run that was observed, with its final values."""

    trajectory: Trajectory
    parameters: dict[str, Tensor]
    moments: dict[str, Tensor] = field(default_factory=dict)


def judged(run: Run, against: Reference, evidence: Witness | None = None) -> Judgement:
    final_of_run = final_state(run.parameters, run.moments, against)
    return judge(run.trajectory, final_of_run, against, evidence)


def ended(parameters: dict[str, Tensor], *, differs: dict[int, set[str]] | None = None) -> Run:
    """Return a run that ends with `parameters`; `differs[step]` names parameters whose digests are not the
    reference's.
    """
    return Run(trajectory(parameters, differs=differs), parameters)


def trajectory(parameters: dict[str, Tensor], *, differs: dict[int, set[str]] | None = None) -> Trajectory:
    base = torch.arange(STEPS * len(NAMES)).view(STEPS, len(NAMES))
    for step, names in (differs or {}).items():
        for name in names:
            base[step, NAMES.index(name)] += 1000
    base[-1] = torch.tensor([digest(parameters[name]) for name in NAMES])
    return Trajectory(
        names=NAMES,
        losses=torch.ones(STEPS, 2, 1, dtype=torch.float64),
        grad_norms=torch.ones(STEPS, dtype=torch.float64),
        digests=base,
    )


def reference(*, truth: bool = True, parameters: dict[str, Tensor] | None = None) -> Reference:
    exact = {name: torch.ones(2000, dtype=torch.float64) for name in NAMES} if truth else {}
    values = parameters or final(1e-5, 0)
    travelled = torch.full((3,), 1.0, dtype=torch.float64)
    shapes = {name: list(value.shape) for name, value in values.items()}
    return Reference(trajectory(values), travelled, ACTIVE, shapes, values, truth=exact)


def verdict_of(run: Run, against: Reference) -> Correctness:
    return judged(run, against).correctness


def test_the_references_own_bits_are_identical() -> None:
    assert verdict_of(ended(final(1e-5, 0)), reference()) == Correctness(
        "identical", 1.0, 0.0, 0, None, None, 0.0, 0.0
    )
    assert verdict_of(ended(final(1e-5, 0)), reference(truth=False)).error_ratio is None


@pytest.mark.parametrize(
    ("size", "verdict"), [(1e-5, "equivalent"), (2e-5, "equivalent"), (3e-4, "drifted"), (1e-2, "wrong")]
)
def test_the_error_ratio_decides(size: float, verdict: VerdictName) -> None:
    result = verdict_of(ended(final(size, 1)), reference())
    assert result.verdict == verdict
    assert result.error_ratio is not None
    assert result.max_abs_diff is not None
    assert result.max_abs_diff > 0


@pytest.mark.parametrize(("size", "verdict"), [(3e-4, "equivalent"), (1e-2, "drifted")])
def test_the_error_of_torchs_own_norm_is_healthy_where_gradients_are_clipped(
    size: float, verdict: VerdictName
) -> None:
    clipped = dataclasses.replace(reference(), clipping_error=torch.tensor(2e-2))
    assert verdict_of(ended(final(size, 1)), clipped).verdict == verdict


@pytest.mark.parametrize("step", [0, 1])
def test_other_bits_on_the_way_are_not_identical_even_if_the_end_is_the_same(step: int) -> None:
    result = verdict_of(ended(final(1e-5, 0), differs={step: {"third"}}), reference())
    assert (result.verdict, result.first_differing_step) == ("equivalent", step + 1)
    assert result.max_abs_diff == 0.0


def test_of_parameters_that_stand_out_the_first_to_differ_is_named() -> None:
    parameters = final(1e-5, 1)
    parameters["second"] = parameters["second"] + 0.02
    parameters["third"] = parameters["third"] + 0.01
    result = verdict_of(ended(parameters, differs={1: {"third"}}), reference())
    assert (result.worst_parameter, result.first_differing_step) == ("third", 2)
    harmless = verdict_of(ended(parameters, differs={1: {"first"}}), reference())
    assert harmless.worst_parameter == "second"


def test_moments_show_what_adam_hides() -> None:
    exact = {name: torch.ones(2000, dtype=torch.float64) for name in NAMES}
    against = dataclasses.replace(
        reference(), moments=final(1e-6, 5), true_moments=exact, moment_sizes=torch.ones(3).double()
    )
    moments = final(1e-6, 6)
    moments["second"] = moments["second"] * 1.2
    observed = dataclasses.replace(ended(final(1e-5, 1)), moments=moments)
    result = verdict_of(observed, against)
    assert (result.verdict, result.worst_parameter) == ("wrong", "second")
    silent = dataclasses.replace(observed, moments={})
    assert verdict_of(silent, against).verdict == "equivalent"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_wrong_and_named(value: float) -> None:
    parameters = final(1e-5, 0)
    parameters["second"][3] = value
    result = verdict_of(ended(parameters), reference())
    assert (result.verdict, result.worst_parameter, result.error_ratio) == ("wrong", "second", None)
    assert result.max_abs_diff is None


def test_a_loss_that_is_not_finite_is_wrong() -> None:
    observed = ended(final(1e-5, 1))
    observed.trajectory.losses[2, 0, 0] = math.nan
    result = judged(observed, reference())
    assert result.correctness.verdict == "wrong"
    assert "loss is not finite" in result.warnings[0]


def test_a_reference_that_is_not_finite_judges_only_its_own_bits() -> None:
    broken = final(1e-5, 0)
    broken["first"][0] = math.nan
    against = reference(parameters=broken)
    assert verdict_of(ended({n: v.clone() for n, v in broken.items()}), against).verdict == "identical"
    other = judged(ended(final(1e-5, 1)), against)
    assert other.correctness.verdict == "unchecked"
    assert "reference itself is not finite" in other.warnings[0]


def test_without_the_truth_only_gross_differences_are_condemned() -> None:
    near = judged(ended(final(1e-5, 1)), reference(truth=False))
    assert (near.correctness.verdict, near.correctness.error_ratio) == ("unchecked", None)
    assert "verify.mode full" in near.warnings[0]
    parameters = final(1e-5, 0)
    parameters["second"] = parameters["second"] + 0.02
    far = verdict_of(ended(parameters), reference(truth=False))
    assert (far.verdict, far.worst_parameter) == ("drifted", "second")


@pytest.mark.parametrize(("distance", "verdict"), [(1.25, "unchecked"), (1.5, "drifted")])
def test_without_the_truth_a_quarter_of_the_way_travelled_is_the_limit(
    distance: float, verdict: VerdictName
) -> None:
    start = {name: torch.ones(4) for name in NAMES}
    travelled = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)  # 5 in all
    against = dataclasses.replace(reference(truth=False, parameters=start), travelled=travelled)
    moved = {**start, "first": torch.tensor([1 + distance, 1.0, 1.0, 1.0])}
    result = judged(ended(moved), against)
    assert result.correctness.verdict == verdict
    if verdict == "drifted":
        assert "30% of the way" in result.warnings[0]


def test_losses_and_norms_are_compared_where_both_are_known() -> None:
    observed = ended(final(1e-5, 1))
    observed.trajectory.losses[1, 1, 0] = 1.25
    observed.trajectory.grad_norms[0] = math.nan
    observed.trajectory.grad_norms[2] = 1.5
    result = verdict_of(observed, reference())
    assert (result.loss_max_abs_diff, result.grad_norm_max_abs_diff) == (0.25, 0.5)
    observed.trajectory.grad_norms.fill_(math.nan)
    assert verdict_of(observed, reference()).grad_norm_max_abs_diff is None


def test_extra_parameters_are_left_out_and_missing_ones_refused() -> None:
    observed = ended(final(1e-5, 0))
    extra = dataclasses.replace(
        observed.trajectory,
        names=("frozen", *NAMES),
        digests=torch.cat([torch.zeros(STEPS, 1, dtype=torch.int64), observed.trajectory.digests], dim=1),
    )
    run = dataclasses.replace(observed, trajectory=extra)
    assert verdict_of(run, reference()).verdict == "identical"
    missing = dataclasses.replace(observed, trajectory=dataclasses.replace(extra, names=("first",)))
    with pytest.raises(ValueError, match="lacks 2 trained parameters: second"):
        judged(missing, reference())


def test_the_gravest_rank_counts() -> None:
    order: list[VerdictName] = ["wrong", "drifted", "unchecked", "equivalent", "identical"]
    judgements = [Judgement(Correctness(verdict)) for verdict in reversed(order)]
    for expected in order:
        assert worse(judgements).correctness.verdict == expected
        judgements = [j for j in judgements if j.correctness.verdict != expected]


def one_weight(value: float, bits: int) -> Run:
    losses, norms = torch.ones(1, 1, 1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    run = Trajectory(("w",), losses, norms, torch.tensor([[bits]]))
    return Run(run, {"w": torch.tensor([value])})


@pytest.mark.parametrize(
    ("travelled", "verdict"), [(0.3, "unchecked"), (1.0, "unchecked"), (1.01, "equivalent")]
)
def test_a_reference_a_quarter_of_the_way_from_its_truth_calls_nothing_equivalent(
    travelled: float, verdict: VerdictName
) -> None:
    """One weight that ended at 1 where the truth is 0.75; other runs ended at 0.5, and far away."""
    truth = {"w": torch.tensor([0.75], dtype=torch.float64)}
    plain, way = one_weight(1.0, 1), torch.tensor([travelled], dtype=torch.float64)
    against = Reference(plain.trajectory, way, ACTIVE, {"w": [1]}, plain.parameters, truth=truth)
    judgement = judged(one_weight(0.5, 2), against)
    assert (judgement.correctness.verdict, judgement.correctness.error_ratio) == (verdict, 1.0)
    warned = f"ended {0.25 / travelled:.0%} of the way that it travelled away from its float64 run"
    assert (warned in "".join(judgement.warnings)) == (verdict == "unchecked")
    assert verdict_of(one_weight(1.0, 1), against).verdict == "identical"
    assert verdict_of(one_weight(8.25, 2), against).verdict == "drifted"


@pytest.mark.parametrize(
    ("truth", "size", "step", "verdict"),
    [
        (True, 1e-5, 2, "identical"),
        (False, 1e-5, 2, "identical"),
        (True, 1e-5, 1, "equivalent"),
        (False, 1e-5, 1, "unchecked"),
        (True, 1e-2, 2, "wrong"),
        (False, 1e-2, 2, "drifted"),
    ],
)
def test_of_two_deterministic_steps_the_bits_decide_and_of_later_ones_the_distance(
    truth: bool, size: float, step: int, verdict: VerdictName
) -> None:
    against = dataclasses.replace(reference(truth=truth), deterministic_steps=2)
    result = judged(ended(final(size, 1), differs={step: {"third"}}), against)
    assert (result.correctness.verdict, result.correctness.first_differing_step) == (verdict, step + 1)
    assert bool(result.warnings) == (verdict in ("unchecked", "drifted"))
