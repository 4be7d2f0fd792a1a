"""The example to read first trains to the bits of the engine."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.engine.ranks import RankPool
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "zero_in_100_lines.py"


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 7))


def batch(step: int) -> Tensor:
    seed = 10 * step + dist.get_rank()
    return torch.randn(5, 13, generator=torch.Generator().manual_seed(seed))


def train(group: dist.ProcessGroup, stage: int) -> list[str]:
    """Train with both; return the names of the parameters that differ after any step."""
    spec = importlib.util.spec_from_file_location("zero_in_100_lines", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    differing, net, start = list[str](), model(), model().state_dict()
    if dist.get_rank() == 1:
        nn.init.zeros_(net[2].weight)  # rank 0's values count
    zero = example.Zero(net, stage)
    engine = build_engine(model(), EngineSpec(zero_stage=stage, param_persistence_threshold=0), group)
    for step in range(4):
        loss = net(batch(step)).square().mean()
        loss.backward()
        zero.step()
        engine.backward(engine.model(batch(step)).square().mean())
        engine.step()
        values = engine.full_parameters()
        for module in zero.modules:
            assert (module.full.untyped_storage().nbytes() == 0) == (stage == 3)
            module.gather()
        names = [name for name, _ in net.named_parameters()]
        differing += [n for n, p in net.named_parameters() if not torch.equal(p, values[n])]
        assert not any(torch.equal(values[n], start[n]) for n in names), "it trains"
        if stage == 3:
            for module in zero.modules:
                module.release()
    engine.close()
    return differing


def test_it_has_the_bits_of_the_engine() -> None:
    ranks = RankPool(2)
    try:
        for stage in (1, 2, 3):
            assert ranks.run(2, f"{__name__}:train", stage) == [[], []], f"stage {stage}"
    finally:
        ranks.close()


@pytest.mark.timeout(300)
def test_it_runs_as_a_script() -> None:

    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    losses = {line.split("loss ")[1] for line in done.stdout.splitlines()}
    assert len(done.stdout.splitlines()) == 3
    assert len(losses) == 1, "every stage trains alike"
