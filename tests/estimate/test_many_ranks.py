"""What a step of a large model launches at many ranks: budgets, counted on tensors without data.

Counts are per block, so a few blocks of the right size stand for all; the soak counts whole models.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from zbench.engine.assembly.settings import GPU_SIZES
from zbench.engine.transport import base
from zbench.estimate.result import StepLaunches
from zbench.estimate.simulate import simulate
from zbench.spec.trial import TrialSpec


class Linear(nn.Linear):
    """Without values: to write gigabytes takes longer than to simulate them."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is."""


class Embedding(nn.Embedding):
    """Without values, likewise."""

    def reset_parameters(self) -> None:
        """Leave the weight as it is."""


class Block(nn.Module):
    """The parameters of a Llama's block, without its attention."""

    def __init__(self, width: int, hidden: int, key_width: int) -> None:
        super().__init__()
        self.q, self.o = (Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (Linear(width, key_width, bias=False) for _ in range(2))
        self.gate, self.up = (Linear(width, hidden, bias=False) for _ in range(2))
        self.down = Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        mixed = torch.cat([self.k(y), self.v(y)], dim=-1).mean(dim=-1, keepdim=True)
        x = x + self.o(self.q(y) * mixed)
        y = self.norm2(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Returns its own loss."""

    def __init__(self, layers: int, width: int, hidden: int, key_width: int, vocabulary: int = 32000) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, hidden, key_width) for _ in range(layers))
        self.head = Linear(width, vocabulary, bias=False)

    def make_batch(self, generator: torch.Generator, size: int, length: int) -> tuple[Tensor]:
        return (torch.randint(0, 99, (size, length), generator=generator),)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).float().mean()


SHAPES = {
    "7B": {"width": 4096, "hidden": 11008, "key_width": 4096},
    "70B": {"width": 8192, "hidden": 28672, "key_width": 1024},
}
BLOCKS = {"7B": 32, "70B": 80}

PER_NODE = 8
FEW = 4
OF_BLOCK = 9
"""Parameters of a block; two of them are norms, which stay gathered."""
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("7B", 8, {"zero_stage": 1}),
    ("7B", 64, {"zero_stage": 2}),
    ("7B", 256, {"zero_stage": 2, "offload_optimizer": "cpu"}),
    ("7B", 8, {"zero_stage": 3}),
    ("7B", 64, {"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"}),
    ("70B", 256, {"zero_stage": 3}),
    ("7B", 64, {"zero_stage": 3, "shard_group_size": 8}),
]

SHORT = (2, 4)


def elements(shape: str, blocks: int) -> int:
    """Return the elements of all trained parameters."""
    width, hidden, key_width = (SHAPES[shape][key] for key in ("width", "hidden", "key_width"))
    block = 2 * width * width + 2 * width * key_width + 3 * width * hidden + 2 * width
    return blocks * block + 2 * 32_000 * width


def launches(shape: str, world_size: int, blocks: int = FEW, **engine: Any) -> StepLaunches:
    """Return the launches of one step of one rank; eight ranks are a node."""
    workload = {
        "model": f"{__name__}:Llama",
        "options": {"layers": blocks, **SHAPES[shape]},
        "sequence_length": 8,
    }
    run = {"world_size": world_size, "nodes": world_size // PER_NODE, "device": "cuda"}
    engine = {"dtype": "bfloat16", **engine}
    trial = TrialSpec.model_validate({"workload": workload, "run": run, "engine": engine})
    return simulate(trial, Path.cwd()).counts


def check(shape: str, world_size: int, engine: dict[str, Any], blocks: int = FEW) -> None:
    """Hold a step to the budgets."""
    counts = launches(shape, world_size, blocks, **engine)
    parameters = OF_BLOCK * blocks + 2
    groups = blocks + 2
    reductions = counts.collectives["reduce_scatter"]["calls"]
    gathers = counts.collectives["all_gather"]["calls"]
    assert counts.gradient_copies <= parameters + reductions
    if engine["zero_stage"] < 3:
        size = GPU_SIZES["reduce_bucket_size"]
        assert reductions + gathers <= 2.2 * math.ceil(elements(shape, blocks) / size)
        assert counts.gathers == {"calls": 0, "exposed": 0}
    else:
        assert reductions <= groups + 1
        assert groups < counts.gathers["calls"] <= 1.1 * 2 * groups
        assert 0 < counts.gathers["exposed"] <= 2
    assert (counts.inter_node_bytes > 0) == (world_size > PER_NODE)


@pytest.mark.check
@pytest.mark.parametrize(
    ("shape", "world_size", "engine"),
    [
        pytest.param(*case, marks=[] if number in SHORT else [pytest.mark.check])
        for number, case in enumerate(CASES)
    ],
)
def test_a_step_keeps_its_budgets_at_any_number_of_ranks(
    shape: str, world_size: int, engine: dict[str, Any]
) -> None:
    check(shape, world_size, engine)


@pytest.mark.soak
@pytest.mark.parametrize("world_size", [8, 64, 256])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("shape", ["7B", "70B"])
def test_whole_models_keep_them(shape: str, stage: int, world_size: int) -> None:
    check(shape, world_size, {"zero_stage": stage}, BLOCKS[shape])


@pytest.mark.check
@pytest.mark.parametrize("stage", [1, 3])
def test_a_share_of_a_gradient_leaves_a_shard_group(stage: int) -> None:
    far = 128
    sent = 2 * elements("7B", 2)
    apart = launches("7B", far, 2, zero_stage=stage, shard_group_size=PER_NODE)
    assert 0 < apart.inter_node_bytes <= 0.3 * sent * PER_NODE
    together = launches("7B", far, 2, zero_stage=1).inter_node_bytes
    assert together <= 1.1 * 2 * sent, "a ring's reduction and gather"


@pytest.mark.check
def test_at_least_the_next_group_is_gathered_ahead() -> None:
    counts = launches("7B", 8, zero_stage=3, prefetch_bucket_size=1)
    assert counts.gathers["exposed"] <= 2
    alone = launches("7B", 8, zero_stage=3, overlap_comm=False)
    assert alone.gathers["exposed"] == alone.gathers["calls"]


def test_shard_groups_are_simulated_on_cpus_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a thread adds over the groups; tensors without data work on one thread only."""
    monkeypatch.setattr(base, "WorkerThread", None)
    workload = {"model": "gpt", "preset": "nano", "sequence_length": 8}
    document = {"workload": workload, "run": {"world_size": 1024, "device": "cpu"}}
    alone, grouped = (
        simulate(TrialSpec.model_validate({**document, "engine": engine}), Path.cwd())
        for engine in ({"zero_stage": 2}, {"zero_stage": 2, "shard_group_size": 8})
    )
    assert grouped.traffic["reduce_scatter"] == alone.traffic["reduce_scatter"]
    assert grouped.traffic["all_gather"].bytes > alone.traffic["all_gather"].bytes
