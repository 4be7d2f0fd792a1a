"""A resumed run is the continuous one, bit for bit, at every stage; and what cannot be resumed says why."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.lattice import EVERY_ROW, PLACES, SIZES
from zbench.testing.ranks import RankPool

ALL = [row | SIZES | {"gradient_clipping": 0.1} for row in EVERY_ROW]
AMSGRAD = {"optimizer": {"amsgrad": True}, "param_groups": {"*bias": {"weight_decay": 0.0}}}
HALF = {"dtype": "bfloat16", "optimizer": {"moments_dtype": "bfloat16", "moments_rounding": "stochastic"}}
SCALED = {"dtype": "float16", "initial_loss_scale": 2.0**24, "loss_scale_window": 1}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("model", "more", "turn"),
    [("mlp", AMSGRAD, 0), ("gpt", HALF, 1), ("mlp", SCALED, 2), ("odd-together", {}, 3), ("mixed", {}, 4)],
    ids=["amsgrad", "bfloat16", "float16", "odd", "mixed"],
)
def test_resumed_is_continuous_at_the_same_stage_and_at_others(
    ranks: RankPool, tmp_path: Path, model: str, more: dict[str, Any], turn: int, place: str
) -> None:
    specs = [row | more for row in ALL]
    for k in range(turn, len(specs), 5):
        folder = tmp_path / str(k)
        folder.mkdir()
        later = [specs[k], specs[(k + 5) % len(specs)]]
        ranks.run(2, "tests.engine.resuming:interrupted", model + place, specs[k], later, str(folder))


@pytest.mark.parametrize("model", ["mlp", "odd-together"])
def test_a_checkpoint_of_two_ranks_is_resumed_by_any_number(
    ranks: RankPool, tmp_path: Path, model: str
) -> None:
    ranks.run(2, "tests.engine.resuming:interrupted", model, ALL[5], [], str(tmp_path))
    saved = load_file(tmp_path / "saved" / "state.safetensors")
    for world_size in (1, 3, 4):
        arguments = (model, [ALL[0], ALL[5], ALL[8], ALL[9]], str(tmp_path / "saved"))
        for loaded in ranks.run(world_size, "tests.engine.resuming:elsewhere", *arguments):
            assert loaded.keys() == saved.keys()
            assert all(torch.equal(loaded[key], saved[key]) for key in saved)


def test_a_checkpoint_of_shard_groups_is_resumed_by_any_number(ranks: RankPool, tmp_path: Path) -> None:
    groups = {"shard_group_size": 2}
    grouped = ALL[5] | groups
    ranks.run(
        4, "tests.engine.resuming:interrupted", "gpt", grouped, [ALL[1] | groups, grouped], str(tmp_path)
    )
    saved = load_file(tmp_path / "saved" / "state.safetensors")
    for world_size, spec in ((1, ALL[5]), (2, ALL[9]), (4, ALL[3] | {"shard_group_size": 1})):
        arguments = ("gpt", [spec], str(tmp_path / "saved"))
        for loaded in ranks.run(world_size, "tests.engine.resuming:elsewhere", *arguments):
            assert all(torch.equal(loaded[key], saved[key]) for key in saved)


@pytest.fixture(scope="module")
def checkpoint(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    ranks.run(2, "tests.engine.resuming:interrupted", "mlp", {"zero_stage": 2}, [], str(folder))
    return folder / "saved"


def _truncate(folder: Path, file: str) -> None:
    content = (folder / file).read_bytes()
    (folder / file).write_bytes(content[: len(content) // 2])


def _without(folder: Path, key: str) -> None:
    state = load_file(folder / "state.safetensors")
    del state[key]
    save_file(state, folder / "state.safetensors")


DAMAGES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda f: (f / "state.safetensors").unlink(), "expected state.safetensors in a checkpoint"),
    (lambda f: _truncate(f, "state.safetensors"), "state.safetensors: damaged"),
    (lambda f: (f / "state.safetensors").write_bytes(b""), "state.safetensors: damaged"),
    (lambda f: _without(f, "param.layers.2.weight"), "'param.layers.2.weight'"),
    (lambda f: _without(f, "engine.steps"), "'engine.steps'"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=range(len(DAMAGES)))
def test_a_damaged_checkpoint_is_refused_whole(
    ranks: RankPool, checkpoint: Path, tmp_path: Path, damage: Callable[[Path], Any], words: str
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "checkpoint")
    damage(folder)
    stage = 3 if words.startswith("expected") else 1
    for message, unharmed in ranks.run(2, "tests.engine.resuming:refused", str(folder), "mlp", stage):
        assert message.startswith("UsageError: ")
        assert words in message
        assert unharmed


def test_another_models_checkpoint_is_refused(ranks: RankPool, checkpoint: Path) -> None:
    for message, unharmed in ranks.run(2, "tests.engine.resuming:refused", str(checkpoint), "wide", 1):
        assert message.startswith(
            "UsageError: expected 'param.layers.0.weight' of shape [512, 13], got [37, 13]"
        )
        assert unharmed
