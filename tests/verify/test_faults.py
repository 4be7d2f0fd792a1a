"""Faults of any step that a lot chose are found: 95 % of each kind and dtype.

If 5 % are missed, more than 11 of 100 are in one of two hundred draws.
"""

import itertools
import random

import pytest

from tests.verify import faults
from tests.verify.faults import KINDS, Fault
from tests.verify.honest import Run
from tests.verify.runs import reference, task
from tests.verify.wrong import WHEN, WRONG, WrongRun

GPT = {
    "model": "gpt",
    "options": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64},
    "sequence_length": 16,
    "micro_batch_size": 2,
}


@pytest.mark.parametrize(
    ("draws", "most_missed", "seed"),
    [
        (1, 0, 1),
        pytest.param(10, 3, 1, marks=[pytest.mark.check, pytest.mark.timeout(3_000)]),
        pytest.param(
            100, 11, random.randrange(1 << 30), marks=[pytest.mark.soak, pytest.mark.timeout(20_000)]
        ),
    ],
    ids=["short", "check", "soak"],
)
@pytest.mark.parametrize(
    "dtype", ["bfloat16", *(pytest.param(name, marks=pytest.mark.check) for name in ("float16", "float32"))]
)
def test_drawn_faults_of_any_step_are_found(dtype: str, draws: int, most_missed: int, seed: int) -> None:
    print(f"seed {seed}")
    lot = random.Random(seed)
    steps = 8 if draws == 1 else 20
    of = task(GPT, steps=steps, dtype=dtype, gradient_clipping=0.5, initial_loss_scale=1024.0)
    plain = reference(of)
    assert Run(of, "foreach").judged(plain).correctness.verdict == "equivalent"
    sizes = {name: len(value) for name, value in plain.parameters.items()}
    for kind in KINDS:
        missed = []
        for _ in range(draws):
            fault = Fault.drawn(kind, lot, of.steps, sizes)
            run = WrongRun(of, "fused", lot.randrange(of.steps), wrong=fault.wrong)
            run.first, run.last = fault.first, fault.last
            result = run.judged(plain).correctness
            if result.verdict not in ("drifted", "wrong") or result.diagnosis is None:
                missed.append(fault)
        assert len(missed) <= most_missed, missed


SHORT = ("bfloat16", "from step 4 on")
HIDDEN = {  # by the rounding of one step
    ("bfloat16", "in step 6"): {
        "losses are 2 % too large",
        "rank 1's loss is 5 % too small",
        "the head's gradient is 5 % too large",
        "attention's gradients are 5 % too small",
        "updates are 1 % too long",
        "the embedding's updates are 5 % too long",
        "half of each tensor is updated 5 % too far",
    }
}
PLACES = {
    "the head's gradient is 5 % too large": "head.weight",
    "a matrix has no gradient": "blocks.1.mlp_in.weight",
    "a matrix has the negative gradient": "blocks.0.mlp_out.weight",
    "a matrix is not updated": "blocks.0.qkv.weight",
    "the embedding's updates are 5 % too long": "tokens.weight",
}


@pytest.mark.parametrize(
    ("dtype", "when"),
    [
        pytest.param(*case, marks=() if case == SHORT else pytest.mark.check)
        for case in itertools.product(("bfloat16", "float16", "float32"), WHEN)
    ],
)
def test_every_wrong_implementation_is_named(dtype: str, when: str) -> None:
    of = task(GPT, steps=10, dtype=dtype, gradient_accumulation_steps=2, initial_loss_scale=1024.0)
    plain = reference(of)
    (first, last) = WHEN[when]
    passed = set()
    for name, wrong in WRONG.items():
        result = WrongRun(of, "fused", 7, wrong=wrong, first=first, last=last).judged(plain).correctness
        finite = result.max_abs_diff is not None
        if result.verdict not in ("drifted", "wrong") or (finite and result.diagnosis is None):
            passed.add(name)
        elif name in PLACES and finite:
            assert PLACES[name] in (result.diagnosis or ""), name
        print(f"{name}: {result.verdict}, {result.diagnosis}")
    assert passed <= HIDDEN.get((dtype, when), set())


UNSEEN = {"half of a matrix published late for three steps", "biases published late for three steps"}
"""Faults of copies in steps whose copies are not compared: too small for 16 bits, and past in the end."""


@pytest.mark.check
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_listed_kinds_of_faults_are_named(dtype: str) -> None:
    for workload, listed in ((faults.GPT, faults.OF_GPT), (faults.CNN, faults.OF_CNN)):
        of = task(workload, steps=faults.STEPS, seed=9, dtype=dtype, **faults.ENGINE)
        plain = reference(of)
        passed = set()
        for one in listed:
            run = WrongRun(of, "fused", 13, wrong=one.wrong, first=one.first, last=one.last)
            result = run.judged(plain).correctness
            assert result.verdict != "identical", one.name
            passed |= {one.name} if result.verdict not in ("drifted", "wrong") else set()
        assert passed <= UNSEEN | (IN_16_BITS if dtype == "bfloat16" else set())


IN_16_BITS = {"running statistics moved twice"}
"""Faults that rounding to 16 bits hides."""


@pytest.mark.parametrize(
    "name", ["a quarter of a matrix uphill", "15 % noise", "half of a matrix updated a step late"]
)
def test_a_fault_of_a_part_is_named_in_bfloat16(name: str) -> None:
    of = task(GPT, steps=4, dtype="bfloat16")
    (fault,) = [one for one in faults.OF_GPT if one.name == name]
    result = WrongRun(of, "fused", 3, wrong=fault.wrong, first=1).judged(reference(of)).correctness
    assert result.verdict in ("drifted", "wrong")


@pytest.mark.check
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize(("lr", "first"), [(0.02, 40), (0.03, 20)])
def test_late_faults_are_named_in_the_steps_that_a_verdict_covers(lr: float, first: int) -> None:
    optimizer = {"lr": lr, "weight_decay": 0.01}
    of = task(faults.GPT, steps=faults.LATE_STEPS, seed=5, **faults.ENGINE | {"optimizer": optimizer})
    plain = reference(of)
    for one in faults.late(first):
        run = WrongRun(of, "fused", 13, wrong=one.wrong, first=one.first, last=one.last)
        result = run.judged(plain).correctness
        assert result.verdict in ("drifted", "wrong") or (result.checked_steps or 0) <= first, one.name
