"""The same micro-batch for the same seed, on every engine and stage; others otherwise."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from zbench.errors import UsageError
from zbench.spec.workload import DataSpec, WorkloadSpec
from zbench.workloads import Workload, build_workload
from zbench.workloads.workload import drawn_by


def workload(base_dir: Path = Path(), *, seed: int = 0, world_size: int = 2, **keys: object) -> Workload:
    spec = WorkloadSpec.model_validate({"model": "mlp", "sequence_length": 16, **keys})
    return build_workload(spec, seed=seed, world_size=world_size, base_dir=base_dir)


def same(one: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_micro_batch_depends_on_its_place_and_seed_alone() -> None:
    batch = workload().batch(3, 1, 0)
    torch.manual_seed(1)
    assert same(batch, workload().batch(3, 1, 0)), "whatever torch's global generator is at"
    assert same(batch, workload(world_size=4).batch(3, 1, 0))
    for other in (
        workload().batch(3, 1, 1),
        workload().batch(3, 0, 0),
        workload().batch(1, 3, 0),
        workload(seed=1).batch(3, 1, 0),
    ):
        assert not same(batch, other)
    with pytest.raises(ValueError, match="rank must be in"):
        workload(world_size=2).batch(0, 0, 2)


@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_every_position_of_a_built_in_model_is_a_token(model: str) -> None:
    made = workload(model=model, micro_batch_size=3)
    assert made.size(made.batch(0, 0, 0)) == 3 * 16


def test_weights_of_losses_are_their_shares_of_the_mean() -> None:
    plain = workload()
    assert plain.loss_weights(0, 3) == [[1.0] * 3] * 2
    sizes = iter([1, 2, 3, 6, 0, 0, 0, 0])
    made = dataclasses.replace(plain, count_weight=lambda batch: next(sizes))
    assert made.loss_weights(0, 2) == [[1 / 3, 2 / 3], [1.0, 2.0]]
    assert made.loss_weights(1, 2) == [[1.0, 1.0], [1.0, 1.0]], "nothing counts"


def test_targets_are_the_tokens_that_follow(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(256)) * 4)
    tokens, targets = workload(tmp_path, data=DataSpec(text="text")).batch(0, 0, 0)
    assert tokens.shape == targets.shape == (2, 16)
    assert tokens.dtype == targets.dtype == torch.int64
    assert torch.equal((tokens + 1) % 256, targets)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


def test_text_that_cannot_serve_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"short")
    with pytest.raises(UsageError, match="holds 5 bytes, but one sequence needs 17"):
        workload(tmp_path, data=DataSpec(text="text"))
    (tmp_path / "text").write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match="vocabulary"):
        workload(tmp_path, data=DataSpec(text="text"), options={"vocabulary": 100})


def test_numbers_drawn_by_a_seed_leave_the_generators() -> None:
    def draw(seed: int) -> tuple[float, float, float]:
        with drawn_by(seed):
            return float(torch.rand(())), random.random(), float(np.random.rand())

    state = random.getstate(), np.random.get_state()[1].tolist()
    first = draw(5)
    assert first == draw(5)
    assert all(a != b for a, b in zip(first, draw(6), strict=True))
    assert state == (random.getstate(), np.random.get_state()[1].tolist())
