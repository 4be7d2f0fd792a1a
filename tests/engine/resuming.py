"""Runs that are saved and resumed, for `test_resume`; they run inside the pool's ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.engine import changes, models
from tests.engine.plain import assert_same
from tests.engine.steps.agreeing import heard
from zbench.engine import Engine, build_engine
from zbench.engine.checkpoint import load, save
from zbench.spec.engine import EngineSpec

State = dict[str, Tensor]


def build(group: dist.ProcessGroup, model: str, spec: Mapping[str, Any]) -> Engine:
    """Return an engine on a fresh model."""
    return build_engine(models.make(model), EngineSpec.model_validate(dict(spec)), group)


def take_steps(engine: Engine, name: str, steps: range, rank: int) -> None:
    """Take the steps of this range, with other hyperparameters in each."""
    for step in steps:
        changes.schedule(step % 4, engine.model, engine.param_groups)
        engine.backward(models.loss(engine.model, models.batch(name, step, 0, rank)))
        engine.step()


def interrupted(
    group: dist.ProcessGroup, name: str, spec: dict[str, Any], later: list[dict[str, Any]], folder: str
) -> None:
    """Save after 2 of 4 steps; resuming with every specification of `later` is as going on."""
    rank = dist.get_rank(group)
    path = Path(folder) / "saved"
    engine = build(group, name, spec)
    take_steps(engine, name, range(2), rank)
    save(engine, path)
    saved = engine.state_dict()
    take_steps(engine, name, range(2, 4), rank)
    expected = engine.state_dict()
    engine.close()
    for changed in later:
        resumed = build(group, name, changed)
        take_steps(resumed, name, range(5, 6), rank)  # it has been somewhere else before
        load(resumed, path)
        assert_same(resumed.state_dict(), saved, f"loaded into {changed}")
        take_steps(resumed, name, range(2, 4), rank)
        assert_same(resumed.state_dict(), expected, f"resumed with {changed}")
        resumed.close()


def elsewhere(group: dist.ProcessGroup, name: str, specs: list[dict[str, Any]], path: str) -> State:
    """Load a checkpoint of another world size in every specification; train on; return the state loaded."""
    loaded: State = {}
    trained: State = {}
    for spec in specs:
        engine = build(group, name, spec)
        load(engine, path)
        first = engine.state_dict()
        assert_same(first, loaded or first, f"{spec}")
        take_steps(engine, name, range(2, 4), dist.get_rank(group))
        last = engine.state_dict()
        assert_same(last, trained or last, f"{spec}")
        loaded, trained = first, last
        engine.close()
    return loaded


def refused(group: dist.ProcessGroup, path: str, name: str, stage: int) -> tuple[str, bool]:
    """Return the message of a load that fails, and whether the engine is as it was and trains on."""
    spec = {"zero_stage": stage, "reduce_bucket_size": 10**6 if name == "wide" else 900}
    rank = dist.get_rank(group)
    engine, undisturbed = (build(group, name, spec) for _ in range(2))
    take_steps(engine, name, range(1), rank)
    before = engine.state_dict()
    message = heard(lambda: load(engine, path))
    unchanged = all(torch.equal(v, before[k]) for k, v in engine.state_dict().items())
    take_steps(engine, name, range(1, 2), rank)
    take_steps(undisturbed, name, range(2), rank)
    same = all(torch.equal(v, engine.state_dict()[k]) for k, v in undisturbed.state_dict().items())
    engine.close()
    undisturbed.close()
    return message, unchanged and same
