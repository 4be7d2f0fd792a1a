"""A step is seeded as `torch.manual_seed` does it, without asking devices that there are not."""

import pytest
import torch

from zbench.workloads import seed_all


def test_a_step_draws_what_manual_seed_would_give() -> None:
    seed = 2**62 + 1
    torch.manual_seed(seed)
    expected = torch.rand(4)
    seed_all(seed, torch.device("cpu"))
    assert torch.equal(torch.rand(4), expected)


def test_the_devices_own_generator_is_seeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    seed_all(7, torch.device("cuda", 0))
    seed_all(8, torch.device("cpu"))
    assert seeds == [7]
