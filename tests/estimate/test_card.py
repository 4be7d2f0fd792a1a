"""Memory that an H100 allocated and reserved, and its simulation (results/benchmarks/gpu.md)."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zbench.estimate.reading import estimate
from zbench.spec.trial import TrialSpec

MIB = 1 << 20
OPTIONS = {"layers": 8, "width": 1024, "heads": 16, "vocabulary": 32000}
WORKLOAD = {"model": "gpt", "options": OPTIONS, "sequence_length": 512, "micro_batch_size": 4}
OFFLOADED = {"offload_optimizer": "cpu"}
MEASURED: list[tuple[dict[str, Any], float, int]] = [
    ({"zero_stage": 1}, 3118.7, 3284),
    ({"zero_stage": 2}, 3118.7, 3284),
    ({"zero_stage": 3}, 2633.0, 2982),
    ({"zero_stage": 3, **OFFLOADED}, 2108.5, 2182),
    ({"zero_stage": 2, "gradient_accumulation_steps": 2, "reduction": "rank_order"}, 3262.2, 3534),
    ({"engine": "fsdp2", "zero_stage": 3}, 2443.0, 3196),
    ({"engine": "fsdp2", "zero_stage": 2}, 2611.2, 3376),
    ({"engine": "fsdp2", "zero_stage": 3, **OFFLOADED, "offload_param": "cpu"}, 1486.3, 2252),
    ({"engine": "ddp", "zero_stage": 0, "dtype": "float32"}, 5041.4, 5120),
    ({"engine": "zero_redundancy", "zero_stage": 1, "dtype": "float32"}, 4406.1, 4474),
]
"""An engine, and the MiB that a rank of two allocated and reserved at most in its second step."""
SHORT = (3,)
ALLOCATED, RESERVED = 0.002, 0.01
"""Largest errors. Kernels' scratch, which is not simulated, took 1 to 4 MiB."""


@pytest.mark.parametrize(
    ("engine", "allocated", "reserved"),
    [
        pytest.param(*row, marks=[] if number in SHORT else [pytest.mark.check])
        for number, row in enumerate(MEASURED)
    ],
)
def test_memory_of_a_card_is_that_measured(
    engine: dict[str, Any], allocated: float, reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    run = {"world_size": 2, "device": "cuda"}
    engine = {"dtype": "bfloat16", **engine}
    trial = TrialSpec.model_validate({"workload": WORKLOAD, "run": run, "engine": engine})
    forecast = estimate(trial, Path.cwd())
    assert forecast.peak_device_bytes / MIB == pytest.approx(allocated, rel=ALLOCATED)
    assert forecast.reserved is not None
    assert forecast.reserved.peak_bytes / MIB == pytest.approx(reserved, rel=RESERVED)


class Rotated(nn.Module):
    """Has a buffer beside its parameters, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.layer.register_buffer("scale", torch.arange(8.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.layer(x) * self.layer.scale, y)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(size, 8, generator=generator)
        return x, x


def test_buffers_of_a_sharded_build_are_on_the_card() -> None:
    workload = {"model": f"{__name__}:Rotated"}
    engine = {"zero_stage": 3, "build": "sharded"}
    run = {"world_size": 2, "device": "cuda"}
    trial = TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})
    forecast = estimate(trial, Path.cwd())
    assert (forecast.peak_host_bytes, forecast.work.host_bytes) == (0, 0)
