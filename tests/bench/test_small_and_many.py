"""The benches of small models and of many configurations: what is a difference, a slope and a share."""

from pathlib import Path

import pytest
import torch.distributed as dist

from zbench.bench import many, small
from zbench.bench.many import Sums
from zbench.bench.turns import Figures
from zbench.spec.expand import expand
from zbench.spec.sweep import SweepSpec


def test_what_a_layer_costs_is_the_slope_of_what_is_beyond_plain_pytorch() -> None:
    shown = {"ddp": Figures([0.010]), "zbench-1": Figures([0.009])}
    grown = {
        n: {mode: [1e-3 * n] if mode == "alone" else [1e-3 * n + 1e-6 * (100 + 7 * n)] for mode in small.OURS}
        for n in small.LAYERS
    }
    said = small.table(shown, grown)
    assert "| zbench-1 | 9.00 | 0.90 |" in said
    assert "| zbench-1 | 114 | 128 | 156 | 212 | 324 | 7 |" in said
    assert "| plain PyTorch, whole step | 2000 | 4000 | 8000 | 16000 | 32000 | - |" in said


def test_every_mode_takes_steps(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=(tmp_path / "meet").as_uri(), rank=0, world_size=1)
    try:
        seconds = small.growth(2, 2)
    finally:
        dist.destroy_process_group()
    assert seconds.keys() == set(small.OURS)
    assert all(len(one) == 2 and min(one) > 0 for one in seconds.values())


def test_there_are_224_configurations_that_share_one_reference() -> None:
    expansion = expand(SweepSpec.model_validate(many.SWEEP))
    assert len(expansion.trials) == 224
    assert not expansion.invalid


@pytest.mark.parametrize("references", [0, 1])
def test_seconds_beyond_steps_are_shared_out_over_configurations(references: int) -> None:
    said = many.table({"off": Sums(4, wall=10.0, trials=8.0, steps=6.0, references=references)})
    assert f"| off | 4 | 10.0 | 6.0 | 500 | 2.0 | {references} |" in said
