"""A resumed run is the continuous one, bit for bit, at every stage; and what cannot be resumed says why."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine import models
from tests.engine.cases import schedule
from tests.engine.lattice import EVERY_ROW, PLACES, SIZES
from tests.engine.plain import assert_same
from tests.engine.steps.agreeing import heard
from zbench.engine import Engine, build_engine
from zbench.engine.checkpoint import load, save
from zbench.spec.engine import EngineSpec
from zbench.testing.ranks import RankPool

State = dict[str, Tensor]


def build(group: dist.ProcessGroup, model: str, spec: Mapping[str, Any]) -> Engine:
    """Return an engine on a fresh model."""
    return build_engine(models.make(model), EngineSpec.model_validate(dict(spec)), group)


def take_steps(engine: Engine, name: str, steps: range, rank: int) -> None:
    """Take the steps of this range, with other hyperparameters in each."""
    for step in steps:
        schedule(step % 4, engine.model, engine.param_groups)
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


ALL = [row | SIZES | {"gradient_clipping": 0.1} for row in EVERY_ROW]
AMSGRAD = {"optimizer": {"amsgrad": True}, "param_groups": {"*bias": {"weight_decay": 0.0}}}
HALF = {"dtype": "bfloat16", "optimizer": {"moments_dtype": "bfloat16", "moments_rounding": "stochastic"}}
SCALED = {"dtype": "float16", "initial_loss_scale": 2.0**24, "loss_scale_window": 1}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("begin", [1, pytest.param(0, marks=pytest.mark.check)])
@pytest.mark.parametrize(
    ("model", "more", "turn"),
    [("mlp", AMSGRAD, 0), ("gpt", HALF, 1), ("mlp", SCALED, 2), ("odd-together", {}, 3), ("mixed", {}, 4)],
    ids=["amsgrad", "bfloat16", "float16", "odd", "mixed"],
)
def test_resumed_is_continuous_at_the_same_stage_and_at_others(
    ranks: RankPool, tmp_path: Path, model: str, more: dict[str, Any], turn: int, begin: int, place: str
) -> None:
    """`make test` has a row with each setting, and `make check` the others."""
    specs = [row | more for row in ALL]
    for k in range(turn, len(specs), 5)[begin::2]:
        folder = tmp_path / str(k)
        folder.mkdir()
        later = [specs[k], specs[(k + 5) % len(specs)]]
        ranks.run(2, f"{__name__}:interrupted", model + place, specs[k], later, str(folder))


GROUPS = {"shard_group_size": 2}


@pytest.mark.parametrize(
    ("model", "of", "spec", "by"),
    [
        ("odd-together", 2, ALL[5], [(1, ALL[0]), (3, ALL[5]), (4, ALL[9])]),
        ("gpt", 4, ALL[5] | GROUPS, [(1, ALL[5]), (2, ALL[9]), (4, ALL[3] | {"shard_group_size": 1})]),
    ],
    ids=["ranks", "shard_groups"],
)
def test_a_checkpoint_is_resumed_by_any_number_of_ranks(
    ranks: RankPool, tmp_path: Path, model: str, of: int, spec: dict[str, Any], by: list[Any]
) -> None:
    later = [ALL[1] | GROUPS, spec] if of == 4 else []
    ranks.run(of, f"{__name__}:interrupted", model, spec, later, str(tmp_path))
    saved = load_file(tmp_path / "saved" / "state.safetensors")
    for world_size, other in by:
        arguments = (model, [other, ALL[8]], str(tmp_path / "saved"))
        for loaded in ranks.run(world_size, f"{__name__}:elsewhere", *arguments):
            assert_same(loaded, saved)


@pytest.fixture(scope="module")
def checkpoint(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    ranks.run(2, f"{__name__}:interrupted", "mlp", {"zero_stage": 2}, [], str(folder))
    return folder / "saved"


def _truncate(folder: Path) -> None:
    file = folder / "state.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _change(folder: Path, key: str, value: Tensor | None) -> None:
    state = load_file(folder / "state.safetensors")
    del state[key]
    save_file(state | ({} if value is None else {key: value}), folder / "state.safetensors")


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "expected state.safetensors in a checkpoint": lambda f: (f / "state.safetensors").unlink(),
    "state.safetensors: damaged": _truncate,
    "'param.layers.2.weight'": lambda f: _change(f, "param.layers.2.weight", None),
    "'engine.steps'": lambda f: _change(f, "engine.steps", None),
    "to be finite and not negative": lambda f: _change(f, "step.layers.2.weight", torch.tensor(-1)),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_checkpoint_is_refused_whole(
    ranks: RankPool, checkpoint: Path, tmp_path: Path, words: str
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    DAMAGES[words](folder)
    stage = 3 if words.startswith("expected") else 1
    for message, unharmed in ranks.run(2, f"{__name__}:refused", str(folder), "mlp", stage):
        assert message.startswith("UsageError: ")
        assert words in message
        assert unharmed


def test_another_models_checkpoint_is_refused(ranks: RankPool, checkpoint: Path) -> None:
    expected = "UsageError: expected 'param.layers.0.weight' of shape [512, 13], got [37, 13]"
    for message, unharmed in ranks.run(2, f"{__name__}:refused", str(checkpoint), "wide", 1):
        assert message.startswith(expected)
        assert unharmed
