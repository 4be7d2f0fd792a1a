"""No right implementation is accused: torch's own kernels, on training runs drawn over the zoo.

The soak draws its seed anew in each run and prints it; the suite's is fixed.
"""

import random
from collections.abc import Sequence

import pytest

from tests.verify.campaign import ACCUSED, kernel_rows, table
from tests.verify.honest import Run
from tests.verify.runs import reference, task
from tests.verify.wrong import Wrong, WrongRun, moves

TRAININGS = 650
"""As many have about 2,000 rows."""
SHORT = (0, 5, 15)
"""Numbers of drawn runs of five steps."""
ONCE_ACCUSED = {
    80303: (446,),
    80411: (66, 426, 489, 678, 885, 938, 1075, 1134, 1154),
    80521: (79,),
    80631: (602,),
}
"""Seed -> numbers of drawn runs that former limits accused: kinks, routers and chaos in 16 bits."""


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [
        (3, SHORT),
        pytest.param(3, range(TRAININGS // 20), marks=[pytest.mark.check, pytest.mark.timeout(3_000)]),
        *(
            pytest.param(seed, numbers, marks=[pytest.mark.check, pytest.mark.timeout(3_000)])
            for seed, numbers in ONCE_ACCUSED.items()
        ),
        pytest.param(
            random.randrange(1 << 30), range(TRAININGS), marks=[pytest.mark.soak, pytest.mark.timeout(20_000)]
        ),
    ],
    ids=["short", "check", *(f"accused {seed}" for seed in ONCE_ACCUSED), "soak"],
)
def test_no_kernel_of_torch_is_accused(seed: int, numbers: Sequence[int]) -> None:
    print(f"seed {seed}")
    rows = [row for number in numbers for row in kernel_rows(seed, number)]
    print(table(rows))
    assert [row for row in rows if row.verdict in ACCUSED] == []


@pytest.mark.check
@pytest.mark.timeout(3_000)
def test_no_compiled_kernel_is_accused() -> None:
    workload = {"model": "mlp", "options": {"hidden": 64, "vocabulary": 64}, "sequence_length": 16}
    for seed in range(3):
        of = task(workload, steps=8, seed=seed)
        assert Run(of, "compiled").judged(reference(of)).correctness.verdict not in ACCUSED


@pytest.mark.parametrize(
    "model",
    [
        "tests.zoo.attention:AttentionPooling",
        "tests.zoo.convolution:BatchNormCnn",
        "tests.zoo.convolution:InstanceNormCnn",
        "tests.zoo.segmentation:BatchNormUNet",
    ],
)
@pytest.mark.parametrize("kernel", ["foreach", "capturable"])
def test_a_bias_before_a_normalization_accuses_nobody(model: str, kernel: str) -> None:
    """Its exact gradient is zero, so rounding noise alone moves it."""
    of = task({"model": model, "sequence_length": 16, "micro_batch_size": 4}, steps=5, world_size=3)
    result = Run(of, kernel).judged(reference(of)).correctness
    assert result.verdict == "equivalent", result.diagnosis


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("beta2", [0.9999, 0.99999])
def test_bias_corrections_in_float32_are_no_fault_at_any_beta2(beta2: float, dtype: str) -> None:
    """Theirs is a share of 1e-4 and of 1e-3 of the first updates; one of a hundredth is still found."""
    workload = {"model": "mlp", "options": {"hidden": 64, "vocabulary": 64}, "sequence_length": 16}
    optimizer = {"name": "adam", "lr": 0.1, "betas": (0.95, beta2), "weight_decay": 0.01}
    of = task(workload, steps=8, seed=1035351410, dtype=dtype, optimizer=optimizer)
    plain = reference(of)
    result = Run(of, "capturable", 6).judged(plain).correctness
    assert result.verdict not in ("drifted", "wrong"), result.diagnosis
    longer = WrongRun(of, "fused", 6, wrong=Wrong(after=moves(1.01))).judged(plain).correctness
    assert longer.verdict in ("drifted", "wrong")
    assert (longer.diagnosis or "").startswith("updates 1.0 % too long (all parameters)")


@pytest.mark.parametrize(
    ("layers", "width", "seed", "kernel", "engine"),
    [
        (
            3,
            64,
            15567422,
            "capturable",
            {"gradient_clipping": 0.5, "optimizer": {"name": "adamw", "lr": 0.1, "weight_decay": 0.01}},
        ),
        (1, 64, 910210574, "capturable", {"optimizer": {"name": "adam", "lr": 0.1, "weight_decay": 0.1}}),
        (
            3,
            16,
            720806401,
            "foreach",
            {"gradient_clipping": 1.0, "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.0}},
        ),
    ],
    ids=["one gradient of low rank", "a decay that cancels the gradient", "keys' biases have no gradient"],
)
def test_what_chaos_makes_of_rounding_is_no_fault(
    layers: int, width: int, seed: int, kernel: str, engine: dict[str, object]
) -> None:
    shape = {"layers": layers, "width": width, "heads": 2, "vocabulary": 64}
    workload = {"model": "gpt", "options": shape, "sequence_length": 16, "micro_batch_size": 2}
    of = task(workload, steps=20, seed=seed, gradient_accumulation_steps=2, **engine)
    result = Run(of, kernel, 6).judged(reference(of)).correctness
    assert result.verdict not in ("drifted", "wrong"), result.diagnosis
    assert result.checked_steps is not None
    assert (result.verdict == "unchecked") == (2 * result.checked_steps < of.steps)
