"""Models: seeded bits, sizes, losses, checkpointing and operation counts."""

from pathlib import Path

import pytest
import torch

from zbench.errors import UsageError
from zbench.spec.workload import WorkloadSpec
from zbench.workloads import Workload, build_workload
from zbench.workloads.flops import counted_flops

SMALL_GPT = {"model": "gpt", "options": {"layers": 2, "width": 32, "heads": 4}, "sequence_length": 16}
SMALL_MLP = {"model": "mlp", "options": {"hidden": 32}, "sequence_length": 16}


def workload(keys: dict[str, object], *, seed: int = 0) -> Workload:
    return build_workload(WorkloadSpec.model_validate(keys), seed=seed, world_size=1, base_dir=Path())


@pytest.mark.parametrize("keys", [SMALL_GPT, SMALL_MLP])
def test_weights_depend_on_the_seed_alone(keys: dict[str, object]) -> None:
    torch.manual_seed(7)
    state = torch.get_rng_state()
    one, other = workload(keys).make_model(), workload(keys).make_model()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    different = workload(keys, seed=1).make_model()
    assert not torch.equal(next(one.parameters()), next(different.parameters()))


def test_a_tied_head_is_the_token_embedding() -> None:
    options = {"layers": 1, "width": 32, "heads": 4, "tied_head": True}
    model = workload({**SMALL_GPT, "options": options}).make_model()
    names = [name for name, _ in model.named_parameters()]
    assert "tokens.weight" in names
    assert "head.weight" not in names


def test_attention_sees_no_later_token() -> None:
    made = workload(SMALL_GPT)
    model = made.make_model()
    seen: list[torch.Tensor] = []
    model.get_submodule("head").register_forward_hook(lambda m, i, out: seen.append(out.detach()))
    tokens, targets = made.batch(0, 0, 0)
    model(tokens, targets)
    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 256
    model(changed, targets)
    assert torch.equal(seen[0][:, :8], seen[1][:, :8])
    assert not torch.equal(seen[0][:, 8:], seen[1][:, 8:])


@pytest.mark.parametrize("keys", [SMALL_GPT, SMALL_MLP])
def test_checkpointed_activations_are_computed_twice_and_change_no_bit(keys: dict[str, object]) -> None:
    gradients, calls = [], []
    for checkpointed in ({}, {"activation_checkpointing": True}):
        small = workload({**keys, **checkpointed})
        model = small.make_model()
        count: list[int] = []
        inner = model.blocks[0].mlp_in if keys["model"] == "gpt" else model.layers[1]
        inner.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        small.loss(model, small.batch(0, 0, 0)).backward()
        calls.append(len(count))
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert calls == [1, 2]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("keys", [SMALL_GPT, SMALL_MLP])
def test_the_loss_is_at_least_float32(keys: dict[str, object]) -> None:
    made = workload(keys)
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        assert made.loss(made.make_model().to(dtype), made.batch(0, 0, 0)).dtype == expected


@pytest.mark.parametrize("keys", [SMALL_GPT, SMALL_MLP])
def test_operations_by_formula_are_those_torch_counts(keys: dict[str, object]) -> None:
    made = workload(keys)
    assert made.flops_per_micro_batch == counted_flops(made)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "gpt", "preset": "smal"}, "did you mean 'small'"),
        ({"model": "mlp", "options": {"hidden": 0}}, "at least 1"),
        ({"model": "gtp"}, "expected gpt, mlp, hf:NAME_OR_PATH or module:callable"),
    ],
)
def test_sizes_that_cannot_be_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        workload(keys)
