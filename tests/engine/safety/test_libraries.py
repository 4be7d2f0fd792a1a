"""Libraries that train, change or save a model, around an engine: plain PyTorch's bits, or refused."""

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)

from tests.engine.lattice import row_id
from tests.engine.plain import assert_same
from tests.engine.safety.plainly import Net, Plain, batch, by_forward, same_steps
from zbench.engine import Engine
from zbench.errors import UsageError
from zbench.testing.ranks import RankPool

Twins = Callable[..., tuple[Engine, Plain]]
ROWS = [{"zero_stage": 1, "offload_optimizer": "cpu", "offload_schedule": "speculative"}, {"zero_stage": 3}]


@pytest.fixture(params=ROWS, ids=row_id)
def row(request: pytest.FixtureRequest) -> Any:
    """Return a specification."""
    return request.param


def with_adapters() -> Any:
    """Return a model of PEFT's with two LoRA adapters, which are both trained."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(5)
    config = peft.LoraConfig(r=4, target_modules=["first", "last"], init_lora_weights=False)
    model = peft.get_peft_model(Net(), config, adapter_name="one")
    model.add_adapter("two", config)
    for name, p in model.named_parameters():
        p.requires_grad_("lora" in name)
    return model


@pytest.fixture
def adapted(twins: Twins) -> tuple[Engine, Plain]:
    """Return an engine on a model with adapters, and its twin."""
    return twins(with_adapters)


@pytest.mark.check
def test_adapters_take_turns_and_are_merged(adapted: tuple[Engine, Plain]) -> None:
    engine, plain = adapted
    nets: list[Any] = [engine.model, plain.model]
    for number, name in enumerate(("one", "two", "one")):
        for net in nets:
            net.set_adapter(name)
        same_steps(engine, plain, number)
    for change, written in (("merge_adapter", True), ("unmerge_adapter", False)):
        with engine.gathered(nets[0], write=True) if written else nullcontext():
            getattr(nets[0], change)()
        getattr(nets[1], change)()
        assert torch.equal(*(net(batch(5)) for net in nets))
        assert_same(engine.full_parameters(), plain.values())
    same_steps(engine, plain, 3)


@pytest.mark.check
def test_adapters_are_saved_and_taken_out_whole(adapted: tuple[Engine, Plain]) -> None:
    from peft import get_peft_model_state_dict

    engine, plain = adapted
    same_steps(engine, plain, 0)
    assert_same(*(get_peft_model_state_dict(net, adapter_name="one") for net in (engine.model, plain.model)))
    with engine.gathered(engine.model):
        merged: Any = deepcopy(engine.model)
    expected: Any = deepcopy(plain.model)
    assert_same(*(net.merge_and_unload().state_dict() for net in (merged, expected)))
    same_steps(engine, plain, 1)


def test_an_adapter_that_is_added_after_the_build_is_refused(adapted: tuple[Engine, Plain]) -> None:
    net: Any = adapted[0].model
    net.add_adapter("three", net.peft_config["one"])
    with pytest.raises(UsageError, match=r"lora_A\.three.*was added to the model"):
        adapted[0].backward(by_forward(net, batch(0)))


class WithLoss(nn.Module):
    """What transformers' Trainer trains: its output has the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        output = self.net(x)
        return {"loss": output.square().mean() / 2, "logits": output}


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, **more: Any) -> Any:
    """Return a Trainer of 6 batches."""
    transformers = pytest.importorskip("transformers")
    more |= {"max_grad_norm": 0.0, "per_device_train_batch_size": 5, "num_train_epochs": 1, "use_cpu": True}
    more |= {"report_to": [], "save_strategy": "no", "disable_tqdm": True}
    rows = [{"x": x, "labels": torch.tensor(0)} for k in range(6) for x in batch(k)]
    return transformers.Trainer(
        model,
        transformers.TrainingArguments(str(folder), **more),
        train_dataset=rows,
        optimizers=(optimizer, None),
    )


def forget_what_accelerate_shares() -> None:
    """Forget the data loader of a training that was broken off."""
    pytest.importorskip("accelerate").state.GradientState._reset_state()


class PlainOptimizer(torch.optim.Optimizer):
    """`Plain`, as a training loop knows an optimizer."""

    def __init__(self, plain: Plain) -> None:
        super().__init__(plain.masters.values(), {"lr": 1e-3})
        self._plain = plain

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._plain.optimizer.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self._plain.step()


@pytest.mark.parametrize("backwards", [pytest.param(1, marks=pytest.mark.check), 2])
def test_the_transformers_trainer_with_the_engines_backward(
    twins: Twins, tmp_path: Path, backwards: int
) -> None:
    engine, plain = twins(WithLoss, accumulation_mode="unmanaged")
    ours = trainer(engine.model, engine.optimizer, tmp_path, gradient_accumulation_steps=backwards)
    with pytest.raises(UsageError, match=r"expected engine.backward\(loss\)"):
        ours.train()
    ours.accelerator.backward = engine.backward
    with pytest.raises(UsageError, match=r"to clip them, set gradient_clipping"):
        ours.train()
    engine.zero_grad()
    ours._get_grad_norm = lambda *_, **__: None
    theirs = trainer(plain.model, PlainOptimizer(plain), tmp_path, gradient_accumulation_steps=backwards)
    for each in (ours, theirs):
        forget_what_accelerate_shares()
        torch.manual_seed(0)  # of the order of batches
        each.train()
    assert_same(engine.full_parameters(), plain.values())


@pytest.mark.parametrize("engine", [{"accumulation_mode": "unmanaged"}], indirect=True, ids=["unmanaged"])
def test_a_loop_of_accelerates_with_the_engines_backward(
    engine: Engine, plain: Plain, tmp_path: Path
) -> None:
    forget_what_accelerate_shares()
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = engine.model
    optimizer = accelerator.prepare(engine.optimizer)
    with pytest.raises(UsageError, match=r"expected engine.backward\(loss\)"):
        accelerator.backward(by_forward(model, batch(0)))
    for number in range(4):
        with accelerator.accumulate(model):
            engine.backward(by_forward(model, batch(number)) / 2)
            (by_forward(plain.model, batch(number)) / 2).backward()
            with pytest.raises(UsageError, match="to clip them, set gradient_clipping"):
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if number % 2:
            plain.step()
            accelerator.save_state(str(tmp_path / str(number)))
    assert_same(engine.full_parameters(), plain.values())
    twice = engine.state_dict()
    accelerator.load_state(str(tmp_path / "1"))
    assert int(engine.state_dict()["engine.steps"]) == 1
    accelerator.load_state(str(tmp_path / "3"))
    assert_same(engine.state_dict(), twice)


def test_a_gradscaler_around_the_engine_is_refused(engine: Engine, plain: Plain) -> None:
    scaler = torch.amp.GradScaler("cpu")
    engine.backward(scaler.scale(by_forward(engine.model, batch(0))))
    with pytest.raises(UsageError, match="the engine holds the gradients"):
        scaler.step(engine.optimizer)
    engine.zero_grad()
    same_steps(engine, plain, 0)


def test_torchs_checkpoint_of_the_model_counts_and_of_the_optimizer_is_refused(
    engine: Engine, plain: Plain
) -> None:
    same_steps(engine, plain, 0)
    state = deepcopy(get_model_state_dict(engine.model))
    assert_same(state, plain.values())
    same_steps(engine, plain, 1)
    for net in (engine.model, plain.model):
        set_model_state_dict(net, {name: value.clone() for name, value in state.items()})
    same_steps(engine, plain, 2)
    with pytest.raises(UsageError, match=r"engine.state_dict\(\)"):
        get_optimizer_state_dict(engine.model, engine.optimizer)
    same_steps(engine, plain, 3)


@pytest.mark.parametrize("stage", [0, pytest.param(3, marks=pytest.mark.check)])
def test_a_state_is_saved_by_torchs_checkpoint_and_loaded_at_another_stage(
    ranks: RankPool, tmp_path: Path, stage: int
) -> None:
    path = "tests.engine.safety.ranked:saved_by_torch"
    for loaded, expected in ranks.run(
        2, path, {"zero_stage": stage}, {"zero_stage": 3 - stage}, str(tmp_path)
    ):
        assert_same(loaded, expected)


def test_no_call_of_the_engine_draws_random_numbers(ranks: RankPool, row: dict[str, Any]) -> None:
    """So dropout has plain PyTorch's masks, after a resume at another world size, too."""
    assert all(ranks.run(2, "tests.engine.safety.ranked:drawn", row))
