"""Faults of any step that a lot chose are found: 95 of 100 of each kind and dtype."""

import itertools
import random

import pytest
import torch

from tests.verify.faults import KINDS, Fault, Faulty
from tests.verify.honest import Run
from tests.verify.runs import reference, task
from zbench.verify.sketches import of_parts, sketch, together

GPT = {
    "model": "gpt",
    "options": {"layers": 2, "width": 32, "heads": 2, "vocabulary": 64},
    "sequence_length": 16,
    "micro_batch_size": 2,
}


@pytest.mark.parametrize(
    ("draws", "seed"),
    [
        (1, 1),
        pytest.param(100, random.randrange(1 << 30), marks=[pytest.mark.soak, pytest.mark.timeout(20_000)]),
    ],
    ids=["short", "soak"],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", pytest.param("float32", marks=pytest.mark.soak)])
def test_drawn_faults_of_any_step_are_found(dtype: str, draws: int, seed: int) -> None:
    print(f"seed {seed}")
    lot, steps = random.Random(seed), 8 if draws == 1 else 20
    of = task(GPT, steps=steps, dtype=dtype, gradient_clipping=0.5, initial_loss_scale=1024.0)
    plain = reference(of)
    assert Run(of, "foreach").judged(plain).correctness.verdict == "equivalent"
    sizes = {name: value.numel() for name, value in plain.plain.parameters.items()}
    for kind in KINDS:
        missed = []
        for _ in range(draws):
            fault = Fault.drawn(kind, lot, of.steps, sizes)
            found = Faulty(of, "fused", lot.randrange(of.steps), fault=fault).judged(plain).correctness
            if found.verdict not in ("drifted", "wrong") or found.diagnosis is None:
                missed.append(fault)
        assert len(missed) <= draws * 0.05, missed


def test_the_sketch_of_a_tensor_is_the_sum_of_its_parts() -> None:
    whole = torch.randn(100_003, generator=torch.Generator().manual_seed(0))
    cuts = [0, 777, 50_001, 100_003]
    parts = [{f"w@{first}": {"exp_avg": whole[first:last]}} for first, last in itertools.pairwise(cuts)]
    sketches = [of_parts(one, "exp_avg") for one in parts]
    torch.testing.assert_close(together(sketches, 0, {"w": 100_003})[0], sketch(whole), rtol=1e-4, atol=1e-3)
    assert bool(together(sketches[:2], 0, {"w": 100_003}).isnan().all())
