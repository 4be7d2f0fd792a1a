"""What besides the trajectory tells a wrong run: buffers, the model's weights, scale, what is frozen."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.verify.test_verdict import NAMES, ended, final, judged, reference, trajectory
from zbench.spec.engine import EngineSpec
from zbench.verify.buffers import BufferLog, BufferMoves, judge_buffers
from zbench.verify.diagnosis import Finding
from zbench.verify.evidence import Witness, adam_of, examine, judge_copies
from zbench.verify.replay import Residual
from zbench.verify.slope import gradient_sums
from zbench.verify.trajectory import Reference

SOUND = Witness({}, [], "it is not shown", None, None, {}, {}, [], "float32")
FLOATS = torch.linspace(-1.0, 1.0, 100)
NAN = torch.full((100,), torch.nan)


def faults(rank: int, buffers: dict[str, Tensor], plain: dict[str, Tensor], **true: Tensor) -> list[str]:
    """Return what is found in a rank's buffers, of size 1. plain: the reference's, by `RANK/NAME`."""
    model = nn.Module()
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    against = replace(reference(), buffers=plain, true_buffers={f"1/{key}": t for key, t in true.items()})
    return [one.text for one in judge_buffers(model, against, {}, rank, BufferLog()) if one.size == 1.0]


@pytest.mark.parametrize(
    ("buffer", "own", "is_sound"),
    [
        (torch.arange(4), torch.arange(4), True),
        (torch.arange(4), torch.arange(4, dtype=torch.int32), True),
        (torch.arange(4), torch.arange(1, 5), False),
        (torch.arange(4), torch.arange(4.0), False),
        (torch.arange(4.0), torch.arange(4), False),
        (torch.arange(4), torch.arange(5), False),
        (NAN, NAN, True),
        (FLOATS, NAN, False),
        (FLOATS, 1.24 * FLOATS, True),
        (FLOATS, 0.79 * FLOATS, False),
        (FLOATS.bfloat16(), FLOATS, True),
    ],
)
def test_a_buffer_is_the_references(buffer: Tensor, own: Tensor, is_sound: bool) -> None:
    found = faults(1, {"b": buffer}, {"1/b": own, "0/b": 5 - own})
    assert found == ([] if is_sound else ["buffers of rank 1 (b)"])


def test_a_buffer_may_be_rank_0s_and_all_others_are_counted() -> None:
    plain = {
        "0/b": torch.tensor([1]),
        "1/b": torch.tensor([2]),
        "0/c": torch.tensor([1]),
        "1/c": torch.tensor([2]),
    }
    assert faults(1, {"b": torch.tensor([1]), "c": torch.tensor([2])}, plain) == []
    assert faults(0, {"b": torch.tensor([2])}, plain) == ["buffers of rank 0 (b)"]
    both = {"b": torch.tensor([3]), "c": torch.tensor([3]), "unknown": torch.tensor([3])}
    assert faults(1, both, plain) == ["buffers of rank 1 (b and 1 more)"]


def test_a_buffer_that_stays_the_same_while_the_references_changes_is_named() -> None:
    model = nn.Module()
    model.register_buffer("mean", torch.zeros(8))
    moves, log, short, long = BufferMoves(), BufferLog(), BufferLog(), BufferLog()
    for step in range(6):
        for one, last in ((short, 4), (long, 3), (log, 5), (moves, 5)):
            model.get_buffer("mean").fill_(min(step, last))
            one.note(model)
    against = replace(reference(), buffers={"0/mean": torch.full((8,), 5.0)}, buffer_moves=moves.table(0))
    assert [judge_buffers(model, against, {}, 0, one) for one in (log, short)] == [[], []]
    (fault,) = judge_buffers(model, against, {}, 0, long)
    assert fault.text == "buffers of rank 0 that do not change in 2 steps (mean)"
    hidden = {"0/mean": torch.full((5,), 7.0, dtype=torch.float64)}
    assert judge_buffers(model, replace(against, buffer_moves=hidden), {}, 0, long) == []


def test_weights_of_a_model_that_are_not_the_engines_are_named() -> None:
    assert judge_copies([], 0) == []
    (one,) = judge_copies(["b"], 1)
    assert (one.size, one.text) == (1.0, "the model of rank 1 has other weights than the engine's (b)")
    (two,) = judge_copies(["a", "b"], 0)
    assert two.text == "the model of rank 0 has other weights than the engine's (a and 1 more)"


def examined(
    *norms: float, against: Reference | None = None, skipped: tuple[int, ...] = (), **changed: Any
) -> tuple[list[Finding], list[float], dict[str, str]]:
    """Return the faults, the coefficients and what was not checked of a run with these gradient norms."""
    against = against or reference()
    against = replace(against, plain=replace(against.plain, skipped=skipped))
    observed = replace(trajectory(final(1e-5, 0)), skipped=skipped)
    if norms:
        observed = replace(observed, grad_norms=torch.tensor(norms, dtype=torch.float64))
    found = examine(observed, against, replace(SOUND, **changed))
    return found.findings, [one.value for one in found.coefficients], found.unchecked


def test_without_gradients_the_norm_of_the_first_step_tells_the_scale() -> None:
    assert examined() == ([], [1.0], {"update": "it is not shown"})
    (fault,), coefficients, unchecked = examined(2.0, 1.0, 1.0, 1.0)
    assert (fault.size, fault.text[:15], coefficients) == (1.0, "gradients 2.0 x", [2.0])
    assert "scale" not in unchecked
    for norm, factors in ((2.0, [0.5]), (0.0, [])):
        plain = replace(reference().plain, grad_norms=torch.full((4,), norm, dtype=torch.float64))
        _, coefficients, unchecked = examined(against=replace(reference(), plain=plain))
        assert (coefficients, "scale" in unchecked) == (factors, not factors)
    assert examined(9.0, 9.0, 1.0, 1.0, skipped=(0, 1))[:2] == ([], [1.0])
    (fault,), _, _ = examined(9.0, 1.5, 1.0, 1.0, skipped=(0,))
    assert fault.size == 0.5
    neither = "the engine reports neither first_moments() nor gradient norms"
    unknown = [torch.nan] * 4
    assert examined(*unknown)[2]["scale"] == neither
    assert examined(*unknown, unread_moments="rank 1 has none")[2]["scale"] == "rank 1 has none"


def test_of_a_run_that_is_not_finite_nothing_else_is_examined() -> None:
    lost = final(1e-5, 0)
    lost["second"][3] = torch.nan
    for observed, against in ((lost, None), (final(1e-5, 1), lost)):
        found = judged(ended(observed), reference(parameters=against), SOUND).correctness
        assert (found.coefficients, found.not_checked, found.diagnosis) == ([], [], None)


def test_of_the_references_own_bits_nothing_is_left_to_check() -> None:
    same, other = final(1e-5, 0), final(1e-5, 1)
    for parameters, left in ((same, []), (other, ["update"])):
        found = judged(ended(parameters), reference(), SOUND)
        assert found.correctness.not_checked == left
        assert found.warnings == [f"{part} not checked: it is not shown" for part in left]


def test_gradients_tell_the_scale_where_both_runs_have_them() -> None:
    gradients = {name: FLOATS.clone() for name in NAMES}
    exact = {name: FLOATS.double() for name in NAMES}
    against = replace(reference(), gradients=gradients, true_gradients=exact)
    right, doubled = (
        gradient_sums({n: factor * g for n, g in gradients.items()}, gradients, exact) for factor in (1, 2)
    )
    assert examined(9.0, 9.0, 9.0, 9.0, against=against, gradients=right)[:2] == ([], [1.0])
    assert "scale" not in examined(*[torch.nan] * 4, against=against, gradients=right)[2]
    (fault,), _, _ = examined(against=against, gradients=doubled)
    assert fault.size == pytest.approx(1.0)
    assert examined(against=against)[1] == examined(gradients=right)[1] == [1.0]


def test_a_step_is_named_where_no_fault_of_all_steps_explains_it() -> None:
    against = reference()
    plain = replace(against.plain, losses=2 * against.plain.losses)
    against = replace(against, plain=plain, true_losses=plain.losses)
    assert [one.text for one in examined(against=against)[0]] == ["losses 50.0 % off from step 1 on"]
    assert [one.size for one in examined(1.05, 1.0, 1.0, 1.0, against=against)[0]] == [pytest.approx(0.05)]
    gross = [Finding(1.0, "the model of rank 0 has other weights")]
    assert examined(against=against, findings=gross)[0] == gross


def test_an_update_that_was_replayed_in_part_names_what_is_missing() -> None:
    def missing(*parts: tuple[str, int, int], **more: Any) -> str | None:
        residuals = [Residual(name, 0, step, step, elements) for name, step, elements in parts]
        adams = {name: adam_of(name, EngineSpec()) for name in NAMES}
        return examined(unread=None, residuals=residuals, adams=adams, **more)[2].get("update")

    text = "optimizer_parts() has moments of {} of 2,000 elements of {}"
    assert missing() == text.format(0, "first")
    whole = [(name, 1, 2000) for name in NAMES]
    assert missing(*whole) is None
    assert missing(*whole[:2]) == text.format(0, "third")
    assert missing(*whole[1:], ("first", 1, 1999)) == text.format("1,999", "first")
    assert missing(*whole[1:], ("first", 1, 1999), ("first", 2, 1)) == text.format("1,999", "first")
    assert missing(*whole[1:], ("first", 1, 1999), ("first", 1, 1)) is None
    idle = replace(reference(), active=torch.zeros(4, 3, dtype=torch.bool))
    assert missing(against=idle) is None


@pytest.mark.parametrize(("name", "decoupled"), [("adamw", True), ("adam", False)])
def test_an_update_is_replayed_with_the_keys_of_its_group(name: str, decoupled: bool) -> None:
    groups = {"*.bias": {"lr": 0.5}}
    spec = EngineSpec.model_validate({"optimizer": {"name": name, "lr": 0.25}, "param_groups": groups})
    found = [
        (one.lr, one.group, one.decoupled) for one in (adam_of(of, spec) for of in ("a.bias", "a.weight"))
    ]
    assert found == [(0.5, "*.bias", decoupled), (0.25, None, decoupled)]


@pytest.mark.parametrize(
    ("frozen", "begun", "words"),
    [
        ({}, 5000, []),
        ({"second": torch.tensor([5000, 7])}, 5000, ["frozen parameter second was changed"]),
        ({"second": torch.tensor([4, 7])}, 4, []),
        ({"second": torch.tensor([7, 4])}, 4, []),
        ({"second": torch.tensor([7, 8])}, 4, ["frozen parameter second has other values than the model's"]),
    ],
)
def test_what_is_frozen_keeps_the_models_values(
    frozen: dict[str, Tensor], begun: int, words: list[str]
) -> None:
    observed = trajectory(final(1e-5, 0))
    digests = observed.digests.clone()
    digests[:, NAMES.index("second")] = 4
    evidence = replace(SOUND, first={"second": begun})
    against = replace(reference(), frozen=frozen)
    findings = examine(replace(observed, digests=digests), against, evidence).findings
    assert [(one.size, one.text) for one in findings] == [(1.0, text) for text in words]


def test_a_parameter_that_never_had_a_gradient_keeps_its_values() -> None:
    active = torch.ones(4, 3, dtype=torch.bool)
    active[:, NAMES.index("third")] = False
    against = replace(reference(), active=active)
    findings = examine(trajectory(final(1e-5, 0)), against, replace(SOUND, first={"third": 1})).findings
    assert [one.text for one in findings] == ["parameter without a gradient third was changed"]
