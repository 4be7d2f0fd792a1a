"""How DeepSpeed's engine is called, by a stand-in for it."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from zbench.errors import UsageError
from zbench.peers import deepspeed as adapter
from zbench.spec.engine import EngineSpec


class StandIn:
    """DeepSpeed's engine: notes what is called."""

    def __init__(self, norm: float | None = None) -> None:
        self.calls: list[Any] = []
        self.norm = norm

    def backward(self, loss: Any) -> None:
        self.calls.append("backward")

    def step(self) -> None:
        self.calls.append("step")

    def set_gradient_accumulation_boundary(self, is_last: bool) -> None:
        self.calls.append(is_last)

    def get_global_grad_norm(self) -> float | None:
        return self.norm

    def destroy(self) -> None:
        self.calls.append("destroy")


def spec_of(**keys: Any) -> EngineSpec:
    return EngineSpec.model_validate({"engine": "deepspeed", "zero_stage": 1, **keys})


def test_deepspeed_counts_micro_batches_by_its_own_step() -> None:
    module = StandIn()
    engine = adapter.DeepSpeedEngine(module, nn.Linear(1, 1), spec_of(gradient_accumulation_steps=2))
    loss = torch.zeros(())
    engine.backward(loss)
    with pytest.raises(UsageError):
        engine.step()
    engine.backward(loss)
    with pytest.raises(UsageError):
        engine.backward(loss)
    info = engine.step()
    assert (info.grad_norm, info.clipped) == (None, False)
    engine.backward(loss)
    engine.close()
    assert module.calls == ["backward", "step", "backward", "step", "backward", "step", "destroy"]


@pytest.mark.parametrize(("mode", "boundaries"), [("multi_backward", [False, True]), ("unmanaged", [])])
def test_other_modes_mark_the_last_backward_if_known(mode: str, boundaries: list[bool]) -> None:
    module = StandIn()
    engine = adapter.DeepSpeedEngine(module, nn.Linear(1, 1), spec_of(accumulation_mode=mode))
    for is_last in (False, True):
        engine.backward(torch.zeros(()), *([is_last] if boundaries else []))
    engine.step()
    assert [call for call in module.calls if isinstance(call, bool)] == boundaries
    assert [call for call in module.calls if isinstance(call, str)] == ["backward", "backward", "step"]


@pytest.mark.parametrize(
    ("limit", "norm", "clipped"),
    [(0.5, 0.75, True), (2.0, 2.0, False), (2.0, None, False)],
)
def test_a_norm_above_the_limit_was_clipped(limit: float, norm: float | None, clipped: bool) -> None:
    module = StandIn(norm)
    engine = adapter.DeepSpeedEngine(module, nn.Linear(1, 1), spec_of(gradient_clipping=limit))
    engine.backward(torch.zeros(()))
    info = engine.step()
    assert (info.grad_norm, info.clipped) == (norm, clipped)


@pytest.mark.parametrize("stage", [1, 3])
def test_whole_parameters_are_the_masters_or_gathered(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[tuple[int, bool]] = []

    def gather(parameters: Any, *, enabled: bool) -> Any:
        gathered.append((len(parameters), enabled))
        return nullcontext()

    model = nn.Linear(2, 1).bfloat16()
    masters = {model.weight: torch.full((1, 2), 0.1), model.bias: None}
    stand_in = SimpleNamespace(
        zero=SimpleNamespace(GatheredParameters=gather),
        utils=SimpleNamespace(safe_get_full_fp32_param=masters.__getitem__),
    )
    monkeypatch.setitem(sys.modules, "deepspeed", stand_in)
    whole = adapter.DeepSpeedEngine(
        StandIn(), model, spec_of(zero_stage=stage, dtype="bfloat16")
    ).full_parameters()
    assert torch.equal(whole["weight"], masters[model.weight])
    assert whole["weight"].data_ptr() != masters[model.weight].data_ptr()
    assert torch.equal(whole["bias"], model.bias.float())
    assert gathered == []
    plain = nn.Linear(2, 1)
    engine = adapter.DeepSpeedEngine(StandIn(), plain, spec_of(zero_stage=stage))
    whole = engine.full_parameters()
    assert gathered == [(2, stage == 3)]
    assert torch.equal(whole["weight"], plain.weight)
    assert whole["weight"].data_ptr() != plain.weight.data_ptr()
    assert engine.memory_by_category() == {"parameters": 3 * 4}


def test_stage_0_reads_torchs_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace())
    module = StandIn(norm=2.5)
    model = nn.Linear(2, 1)
    module.optimizer = torch.optim.AdamW(model.parameters())  # type: ignore[attr-defined]
    engine = adapter.DeepSpeedEngine(module, model, spec_of(zero_stage=0))
    assert engine.first_moments() == {}
    model(torch.ones(1, 2)).sum().backward()
    module.optimizer.step()  # type: ignore[attr-defined]
    engine.backward(torch.zeros(()))
    assert engine.step().grad_norm is None
    moments = engine.first_moments()
    for name, p in model.named_parameters():
        assert torch.equal(moments[name], module.optimizer.state[p]["exp_avg"])  # type: ignore[attr-defined]


def test_a_rank_shows_its_fragment_of_masters_and_moments() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(1, 1, bias=False).requires_grad_(False))
    flat = torch.arange(10.0)
    address = SimpleNamespace(start=3, numel=5)
    moments = {"exp_avg": flat[5:], "exp_avg_sq": flat[5:], "other": flat[5:]}
    model[0].weight._hp_mapping = SimpleNamespace(
        lp_fragment_address=address, hp_fragment=flat[:5], optim_fragment=moments
    )
    model[0].bias._hp_mapping = None  # on another rank
    engine = adapter.DeepSpeedEngine(StandIn(), model, spec_of(zero_stage=1))
    (key, part), *others = engine.optimizer_parts().items()
    assert (key, set(part), others) == ("0.weight@3", {"param", "exp_avg", "exp_avg_sq"}, [])
    assert part["param"].tolist() == list(range(5))


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.usefixtures("alone")
def test_sharded_moments_are_read_once_every_rank_has_them(
    amsgrad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that, DeepSpeed would fail on one rank and leave the others waiting."""
    values = {"exp_avg": 1.0, "exp_avg_sq": 2.0} | ({"max_exp_avg_sq": 3.0} if amsgrad else {})
    utils = SimpleNamespace(safe_get_full_optimizer_state=lambda p, kind: torch.full_like(p, values[kind]))
    zero = SimpleNamespace(GatheredParameters=lambda parameters, *, enabled: nullcontext())
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(utils=utils, zero=zero))
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1, bias=False).requires_grad_(False))
    engine = adapter.DeepSpeedEngine(StandIn(), model, spec_of(optimizer={"amsgrad": amsgrad}))
    here = model[0].weight  # the bias is on another rank
    here._hp_mapping = SimpleNamespace(optim_fragment={"exp_avg": here})
    assert engine.first_moments() == {}
    engine.backward(torch.zeros(()))
    engine.step()
    moments = engine.first_moments()
    assert {name: float(value.max()) for name, value in moments.items()} == {"0.weight": 1.0, "0.bias": 1.0}
    for fragment in (None, {}, {"exp_avg_sq": here}):
        here._hp_mapping = SimpleNamespace(optim_fragment=fragment)
        assert engine.first_moments() == {}
    here._hp_mapping = None
    monkeypatch.setattr(
        adapter.dist, "all_reduce", lambda on_all, op: on_all.mul_(op != adapter.dist.ReduceOp.MIN)
    )
    assert engine.first_moments() == {}, "another rank has none yet"


@pytest.mark.parametrize(
    ("rank", "device", "env", "expected"),
    [
        (3, "cpu", {}, ("1", "2", "one")),
        (3, "cuda:0", {"LOCAL_RANK": "1"}, ("0", "2", "one")),
        (2, "cpu", {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "here"}, ("0", "2", "here")),
    ],
)
def test_ranks_of_two_hosts_are_told_their_host(
    rank: int, device: str, env: dict[str, str], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [("one", 11), ("two", 11), ("one", 12), ("two", 12)]
    environ = dict(env)
    monkeypatch.setattr(adapter.os, "environ", environ)
    monkeypatch.setattr(adapter.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(adapter.dist, "get_world_size", lambda: 4)
    gather = lambda out, item: out.__setitem__(slice(4), places)  # noqa: E731
    monkeypatch.setattr(adapter.dist, "all_gather_object", gather)
    adapter._describe_launch(torch.device(device))
    assert tuple(environ[name] for name in ("LOCAL_RANK", "LOCAL_SIZE", "MASTER_ADDR")) == expected
    assert (environ["RANK"], environ["MASTER_PORT"]) == (str(rank), "11")


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.usefixtures("alone")
def test_deepspeed_is_built_as_by_its_launcher(
    shares: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    launcher = "RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE MASTER_ADDR MASTER_PORT LOCAL_WORLD_SIZE DS_ACCELERATOR"
    for name in launcher.split():
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = tmp_path / "lock"
    lock.touch()
    kwargs: dict[str, Any] = {}

    def initialize(**keys: Any) -> tuple[StandIn, None]:
        kwargs.update(keys, shared=adapter._shared_memory())
        if shares:  # with GPUs it has none
            kwargs["shared"].touch()
        assert not lock.exists(), "it would wait for it forever"
        return StandIn(), None

    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(initialize=initialize))
    model = nn.Linear(2, 1)
    spec = spec_of(param_groups={"bias": {"frozen": True}})
    engine = adapter.build_engine(model, spec)
    assert isinstance(engine.module, StandIn)
    assert kwargs["config"] == adapter.configuration(spec)
    assert kwargs["dist_init_required"] is False
    assert [p for group in kwargs["model_parameters"] for p in group["params"]] == [model.weight, model.bias]
    assert not model.bias.requires_grad
    assert [os.environ[name] for name in launcher.split()[:4]] == ["0", "1", "0", "1"]
    assert os.environ["MASTER_PORT"] == str(os.getpid())
    buffer_name = f"deepspeed_allreduce_buffer_{os.getuid()}_127.0.0.1_{os.getpid()}_0"
    assert kwargs["shared"] == Path("/dev/shm", buffer_name)
    assert not kwargs["shared"].exists()
    assert os.environ.get("DS_ACCELERATOR") == (None if torch.cuda.is_available() else "cpu")


def test_a_scalar_parameter_is_refused_by_name() -> None:
    model = nn.Linear(2, 1)
    model.scale = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UsageError, match=r"engine: deepspeed: .*'scale' has none; give it the shape \[1\]"):
        adapter.build_engine(model, spec_of())
