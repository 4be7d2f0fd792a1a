"""Rows with other micro-batches and the same global batch train the same step, or it is told why not."""

from typing import Any

import pytest
import torch

from tests.verify.honest import Run
from tests.verify.runs import reference, task
from zbench.record.record import Correctness
from zbench.verify.limits import LEAST_SHARE
from zbench.verify.micro_batches import exact_difference, told_of_micro_batches
from zbench.verify.plain_training import PlainTask
from zbench.verify.verdict import Judgement, judge

MEANS = (
    "convolution:InstanceNormCnn", "segmentation:PlainUNet", "attention:Perceiver",
    "attention:VisionTransformer", "recurrent:TanhRnn", "recurrent:LstmCrf", "graph:MessagePassing",
    "state_space:SelectiveScan", "experts:SharedExperts", "generative:VectorQuantizer",
    "scientific:FourierOperator", "tabular:NBeats",
)  # fmt: skip
OTHERS = {
    "convolution:BatchNormCnn": "layers.1 (BatchNorm2d) takes the statistics of each micro-batch",
    "convolution:PlainCnn": "layers.3 (Dropout2d) draws a mask for each micro-batch",
    "attention:PostNormEncoder": "self_attn (MultiheadAttention) draws a mask for each micro-batch",
    "contrastive:Clip": "no mean over samples: it compares them",
}


def row(model: str, size: int, **engine: Any) -> PlainTask:
    """Return a row with 16 samples a step on two ranks. size: of a micro-batch."""
    workload = {"model": f"tests.zoo.{model}", "sequence_length": 8, "micro_batch_size": size}
    engine = {"gradient_accumulation_steps": 8 // size} | engine
    return task(workload | {"global_batch_size": 16}, **engine)


@pytest.mark.parametrize("model", MEANS)
def test_a_mean_over_samples_trains_the_same_with_any_micro_batch(model: str) -> None:
    base = reference(row(model, 2))
    for size in (4, 8):
        other = row(model, size)
        assert exact_difference(reference(other), base) < 1e-12
        correctness = judge(*_observed(other, base)).correctness
        assert correctness.verdict in ("identical", "equivalent"), correctness


def _observed(of: PlainTask, plain: Any) -> tuple[Any, ...]:
    observed, final, witness = Run(of).observe(plain)
    return observed, final, plain, witness


@pytest.mark.parametrize("model", OTHERS)
def test_the_layer_that_mixes_samples_is_named(model: str) -> None:
    small, large = row(model, 2, dtype="bfloat16"), row(model, 8, dtype="bfloat16")
    share = exact_difference(reference(large), reference(small))
    assert share is not None
    assert share > LEAST_SHARE
    judgement = Judgement(Correctness("identical"))
    apart = {"micro_batch_size": (8, 2)}
    made = large.workload
    told = told_of_micro_batches(judgement, apart, share, made.make_model(), made.data)
    assert (told.correctness.verdict, told.correctness.differs_along) == ("identical", ["micro_batch_size"])
    assert (
        "rows along micro_batch_size train different steps: micro_batch_size 8 against 2" in told.warnings[0]
    )
    assert OTHERS[model] in told.warnings[0]
    assert told_of_micro_batches(judgement, apart, 1e-9, made.make_model(), made.data) == judgement


class OneTensorForAll(torch.nn.Linear):
    """A model whose batches have a tensor that does not grow with the samples."""

    def __init__(self) -> None:
        super().__init__(4, 1)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(size, 4, generator=generator), torch.randn(4, generator=generator)

    def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return super().forward(x + shift).square().mean()


def test_a_batch_that_cannot_be_cut_is_named() -> None:
    tasks = [
        task(
            {"model": f"{__name__}:OneTensorForAll", "micro_batch_size": size, "global_batch_size": 8},
            gradient_accumulation_steps=4 // size,
        )
        for size in (1, 2)
    ]
    share = exact_difference(*(reference(of) for of in tasks))
    made = tasks[0].workload
    judgement = Judgement(Correctness("identical"))
    told = told_of_micro_batches(judgement, {}, share, made.make_model(), made.data)
    assert "a tensor whose first dimension is not that of the samples" in told.warnings[0]
