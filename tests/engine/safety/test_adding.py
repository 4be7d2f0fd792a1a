"""Parameter groups that are added between steps: plain PyTorch's bits, or a refusal before any change."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engine.plain import padded
from tests.engine.ranks import RankPool
from tests.engine.safety.faults import ALLOCATIONS, COLLECTIVES, Faults, build_watched
from tests.engine.safety.plainly import (
    SMALL,
    STAGES,
    Plain,
    assert_same,
    batch,
    build,
    row_id,
    same_steps,
    step,
)
from zbench.engine import Engine, load, save
from zbench.errors import UsageError
from zbench.spec.engine import EngineSpec

SPECULATIVE = {"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"}
HALF = {"zero_stage": 1, "offload_optimizer": "cpu", "offload_ratio": 0.5}
RESIDENT = {"zero_stage": 3, "param_persistence_threshold": 200}
ROWS = [*STAGES, SPECULATIVE, HALF, RESIDENT]
each_row = pytest.mark.parametrize("row", ROWS, ids=row_id)


class Net(nn.Module):
    """A frozen layer, trained ones, and room for a module that comes later."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.middle, self.last = nn.Linear(13, 24), nn.Linear(24, 24), nn.Linear(24, 7)
        self.first.requires_grad_(False)
        self.adapter: nn.Module = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.adapter(self.middle(torch.tanh(self.first(x))))))


class Adapter(nn.Module):
    """A residual one, with a buffer; `seed` draws its values."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.down, self.norm, self.up = nn.Linear(24, 5), nn.LayerNorm(5), nn.Linear(5, 24)
        self.register_buffer("scale", torch.rand(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.up(self.norm(self.down(x)))


def add_to_plain(plain: Plain, names: Iterable[str], **keys: Any) -> None:
    """Do with the plain run what add_param_group does."""
    named = dict(plain.model.named_parameters())
    for group in plain.optimizer.param_groups:
        group["params"] = [p for p in group["params"] if all(p is not plain.masters.get(n) for n in names)]
    plain.masters |= {n: nn.Parameter(padded(named[n])) for n in names}
    defaults = {"lr": 1e-3, "weight_decay": 0.01}
    plain.optimizer.add_param_group({**defaults, **keys, "params": [plain.masters[n] for n in names]})


def pair(row: dict[str, Any], **keys: Any) -> tuple[Engine, Plain]:
    engine, plain = build(Net(), row, **keys), Plain(Net())
    for number in range(2):
        step(engine, plain, number)
    return engine, plain


def pair_with_adapter(row: dict[str, Any]) -> tuple[Engine, Plain]:
    """Return both sides after two steps, with a module that they have gained since."""
    engine, plain = pair(row)
    for net in (engine.model, plain.model):
        net.adapter = Adapter(6)
    return engine, plain


def names_of(engine: Engine, prefix: str) -> list[str]:
    return [n for n, _ in engine.model.named_parameters() if n.startswith(prefix)]


def add(engine: Engine, plain: Plain, names: Iterable[str], **keys: Any) -> None:
    """Add the parameters with these names on both sides."""
    parameters = dict(engine.model.named_parameters())
    engine.optimizer.add_param_group({"params": [parameters[n] for n in names], **keys})
    add_to_plain(plain, names, **keys)


@each_row
def test_a_module_added_between_steps_is_trained_in_its_group(row: dict[str, Any]) -> None:
    engine, plain = pair_with_adapter(row)
    add(engine, plain, names_of(engine, "adapter"), lr=5e-3, weight_decay=0.1)
    assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 2, 3, 4)
    assert engine.param_groups[-1]["lr"] == 5e-3
    engine.close()


@each_row
def test_weights_and_biases_of_a_module_are_added_in_two_groups(row: dict[str, Any]) -> None:
    engine, plain = pair_with_adapter(row)
    decayed = [n for n in names_of(engine, "adapter") if n.endswith("weight")]
    rest = [n for n in names_of(engine, "adapter") if not n.endswith("weight")]
    add(engine, plain, decayed)
    with pytest.raises(UsageError, match=r"'adapter.down.bias' was added.*add_param_group"):
        engine.backward(engine.model(batch(2)).square().mean())
    add(engine, plain, rest, weight_decay=0.0)
    same_steps(engine, plain, 2, 3)
    engine.close()


@each_row
def test_a_frozen_layer_is_unfrozen_into_a_group_of_its_own(row: dict[str, Any]) -> None:
    engine, plain = pair(row)
    for net in (engine.model, plain.model):
        net.first.requires_grad_(True)
    add(engine, plain, names_of(engine, "first"), lr=1e-4)
    same_steps(engine, plain, 2, 3)
    for groups in (engine.param_groups, plain.optimizer.param_groups):
        groups[-1]["lr"] = 2e-4
    same_steps(engine, plain, 4)
    engine.close()


@each_row
def test_a_schedule_goes_on_over_the_groups_that_were_added(row: dict[str, Any]) -> None:
    engine, plain = pair_with_adapter(row)
    add(engine, plain, names_of(engine, "adapter"), lr=5e-3)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
        for optimizer in (engine.optimizer, plain.optimizer)
    ]
    for number in range(2, 5):
        same_steps(engine, plain, number)
        for schedule in schedules:
            schedule.step()
    engine.close()


@each_row
def test_a_group_with_amsgrad_is_added_to_one_without(row: dict[str, Any]) -> None:
    engine, plain = pair_with_adapter(row)
    add(engine, plain, names_of(engine, "adapter"), amsgrad=True)
    same_steps(engine, plain, 2, 3)
    engine.close()


def test_a_compiled_model_gains_a_module() -> None:
    engine, plain = pair({"zero_stage": 1, "compile": "aot_eager"})
    for net in (engine.model, plain.model):
        net.adapter = Adapter(6)
    add(engine, plain, names_of(engine, "adapter"), lr=5e-3)
    same_steps(engine, plain, 2, 3)
    engine.close()


@each_row
def test_a_checkpoint_after_an_addition_resumes_with_all_moments(row: dict[str, Any], tmp_path: Any) -> None:
    engine, plain = pair_with_adapter(row)
    add(engine, plain, names_of(engine, "adapter"), lr=5e-3)
    same_steps(engine, plain, 2, 3)
    save(engine, tmp_path / "saved")
    engine.close()
    net = Net()
    net.adapter = Adapter(7)
    other = build(net, row, param_groups={"adapter.*": {"lr": 5e-3}})
    load(other, tmp_path / "saved")
    same_steps(other, plain, 4)
    other.close()


@each_row
def test_new_parameters_and_buffers_take_the_engines_dtypes(row: dict[str, Any]) -> None:
    engine = build(Net(), row, dtype="bfloat16")
    engine.model.adapter = Adapter(6)
    engine.optimizer.add_param_group({"params": engine.model.adapter.parameters()})
    before = engine.full_parameters()
    assert torch.equal(before["adapter.down.weight"], dict(Adapter(6).named_parameters())["down.weight"])
    assert {t.dtype for t in (*engine.model.parameters(), *engine.model.buffers())} == {torch.bfloat16}
    engine.backward(engine.model(batch(0).bfloat16()).float().square().mean())
    engine.step()
    assert not torch.equal(engine.full_parameters()["adapter.up.weight"], before["adapter.up.weight"])
    engine.close()


MISTAKES: dict[str, tuple[Callable[[Net], dict[str, Any]], str]] = {
    "not the model's": (lambda net: {"params": [nn.Parameter(torch.ones(2))]}, "parameters of the engine's"),
    "names": (lambda net: {"params": ["first.weight"]}, "parameters of the engine's model, got str"),
    "trained": (lambda net: {"params": net.last.parameters()}, "'last.weight' is trained already"),
    "twice": (lambda net: {"params": [net.first.weight] * 2}, "each once"),
    "none": (lambda net: {"lr": 1.0}, "at least one parameter"),
    "misspelt": (
        lambda net: {"params": net.first.weight, "weight_decya": 1.0},
        "weight_decay.*'weight_decya'",
    ),
    "invalid": (lambda net: {"params": net.first.weight, "lr": -1.0}, "lr: expected a finite number"),
    "double": (lambda net: {"params": net.wide.weight}, "float64.*'wide.weight'"),
    "elsewhere": (lambda net: {"params": net.elsewhere.weight}, "'elsewhere.weight' on cpu.*got meta"),
}


@each_row
@pytest.mark.parametrize(("mistake", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_refused_and_nothing_has_changed(
    row: dict[str, Any], mistake: Callable[[Net], dict[str, Any]], message: str
) -> None:
    engine, plain = pair(row)
    net, before = engine.model, [dict(group) for group in engine.param_groups]
    net.wide, net.elsewhere = nn.Linear(2, 2).double(), nn.Linear(2, 2, device="meta")
    with pytest.raises(UsageError, match=message):
        engine.optimizer.add_param_group(mistake(net))  # type: ignore[arg-type]
    del net.wide, net.elsewhere
    for group, was in zip(engine.param_groups, before, strict=True):
        assert group.keys() == was.keys()
        assert [id(p) for p in group["params"]] == [id(p) for p in was["params"]]
    same_steps(engine, plain, 2, 3)
    engine.close()


@each_row
def test_an_addition_inside_a_step_is_refused(row: dict[str, Any]) -> None:
    engine, plain = pair(row)
    engine.backward(engine.model(batch(2)).square().mean())
    with pytest.raises(UsageError, match=r"call it after step\(\)"):
        engine.optimizer.add_param_group({"params": engine.model.first.parameters()})
    engine.step()
    plain.model(batch(2)).square().mean().backward()
    plain.step()
    same_steps(engine, plain, 3)
    engine.close()


@pytest.mark.parametrize("row", [STAGES[0], SPECULATIVE, RESIDENT], ids=row_id)
def test_an_addition_that_fails_anywhere_leaves_the_groups_as_they_were(row: dict[str, Any]) -> None:
    faults = Faults(*ALLOCATIONS, *COLLECTIVES)
    spec = EngineSpec.model_validate({**SMALL, **row})
    engine, exchanged = build_watched(Net(), spec, faults)
    plain = Plain(Net())
    step(engine, plain, 0)
    while not exchanged:
        faults.at = 0 if faults.at is None else faults.at + 1
        engine.model.adapter = Adapter(6)
        try:
            engine.optimizer.add_param_group({"params": engine.model.adapter.parameters(), "lr": 5e-3})
        except MemoryError:
            engine.model.adapter = nn.Identity()
            assert len(engine.param_groups) == 1
            same_steps(engine, plain, 1)
    plain.model.adapter = Adapter(6)
    add_to_plain(plain, names_of(engine, "adapter"), lr=5e-3)
    same_steps(engine, plain, 2)
    engine.close()


@each_row
def test_two_ranks_add_a_module_with_rank_0s_values(ranks: RankPool, row: dict[str, Any]) -> None:
    assert ranks.run(2, "tests.engine.safety.adding:adds", row) == [True] * 2


@pytest.mark.parametrize("row", [STAGES[0], SPECULATIVE, RESIDENT], ids=row_id)
def test_ranks_that_add_other_parameters_stop_and_name_them(ranks: RankPool, row: dict[str, Any]) -> None:
    for said in ranks.run(2, "tests.engine.safety.adding:adds_others", row):
        assert said.startswith("RanksDisagreeError: expected the same trained parameters"), said
        assert "rank 0: 'one.weight' in group 1" in said
        assert "rank 1: 'two.weight' in group 1" in said
