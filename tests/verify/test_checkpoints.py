"""Checkpoints of scripts: which tensors are weights, read without running anything."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from zbench.errors import UsageError
from zbench.verify.checkpoints import read_weights


class Settings:
    """What a checkpoint of DeepSpeed's holds beside its tensors: a class that torch does not know."""

    ran = False

    def __init__(self) -> None:
        self.stage = 2

    def __setstate__(self, state: dict[str, Any]) -> None:
        Settings.ran = True


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"a.weight": torch.randn(6, 5, generator=generator), "b": torch.randn(7, generator=generator)}


def same(state: dict[str, Tensor]) -> bool:
    return state.keys() == weights().keys() and all(torch.equal(state[n], v) for n, v in weights().items())


def test_safetensors_alone_and_in_shards(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "model.safetensors")
    assert same(read_weights(tmp_path / "model.safetensors"))
    (tmp_path / "shards").mkdir()
    for number, (name, value) in enumerate(weights().items()):
        save_file({name: value}, tmp_path / "shards" / f"model-{number}.safetensors")
    assert same(read_weights(tmp_path / "shards"))


@pytest.mark.parametrize("name", ["optimizer", "rng_state_0", "scheduler", "training_args"])
@pytest.mark.parametrize("ending", ["bin", "pt"])
def test_a_trainers_other_files_are_no_weights(name: str, ending: str, tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / f"pytorch_model.{ending}")
    torch.save({"other": torch.ones(3)}, tmp_path / f"{name}.{ending}")
    assert same(read_weights(tmp_path))


def test_files_that_disagree_on_a_weight_are_refused(tmp_path: Path) -> None:
    first, second = tmp_path / "ema.safetensors", tmp_path / "model.safetensors"
    save_file(weights(), first)
    save_file(weights(), second)
    assert same(read_weights(tmp_path)), "twice the same is what tied weights are saved as"
    name = next(iter(weights()))
    save_file({name: weights()[name] + 1}, second)
    with pytest.raises(UsageError, match=rf"ema.safetensors and model.safetensors hold different .*{name}"):
        read_weights(tmp_path)


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
def test_a_torch_file_wrapped_or_not(wrapper: str | None, tmp_path: Path) -> None:
    saved = weights() if wrapper is None else {wrapper: weights(), "step": 3}
    torch.save(saved, tmp_path / "model.pt")
    assert same(read_weights(tmp_path / "model.pt"))


def test_networks_are_found_by_their_tensors(tmp_path: Path) -> None:
    """Neither the state of an optimizer nor the loss beside them is a weight."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    other = {"optimizer": optimizer.state_dict(), "opt_d": optimizer.state_dict(), "loss": torch.tensor(0.5)}
    torch.save({"model": weights(), "nets": {"D": weights()}, **other}, tmp_path / "gan.pt")
    names = {f"{network}.{name}" for network in ("model", "nets.D") for name in weights()}
    assert read_weights(tmp_path / "gan.pt").keys() == names


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_names_do_not_have_the_prefixes_of_wrappers(prefix: str, tmp_path: Path) -> None:
    save_file({f"{prefix}{name}": value for name, value in weights().items()}, tmp_path / "m.safetensors")
    assert same(read_weights(tmp_path / "m.safetensors"))
    both = {"G": {f"{prefix}{name}": value for name, value in weights().items()}, "D": weights()}
    torch.save(both, tmp_path / "m.pt")
    assert {f"G.{name}" for name in weights()} < read_weights(tmp_path / "m.pt").keys()


class Harmful:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harmed"),))


def test_a_file_that_would_run_something_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"module": weights(), "trap": Harmful()}, tmp_path / "model.pt")
    with contextlib.suppress(UsageError):  # refused, or read with the trap left inert
        read_weights(tmp_path / "model.pt")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("prefix", ["", "bf16_"])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_folder_of_deepspeeds_is_put_together_from_its_parts(
    stage: int, prefix: str, tmp_path: Path
) -> None:
    """The float32 masters of two ranks, laid out as DeepSpeed's own zero_to_fp32 reads them."""
    step = tmp_path / "global_step4"
    step.mkdir()
    (tmp_path / "latest").write_text("global_step4")
    shapes = [{name: value.shape for name, value in weights().items()}]
    rounded = {name: value.bfloat16() for name, value in weights().items()}
    model = {"module": rounded if stage == 2 else {}, "param_shapes": shapes, "settings": Settings()}
    name = "mp_rank_00_model_states.pt" if stage == 2 else "zero_pp_rank_0_mp_rank_00_model_states.pt"
    torch.save(model, step / name)
    for rank in range(2):
        if stage == 2:
            flat = torch.cat([value.flatten() for value in weights().values()] + [torch.zeros(1)])
            state = {"single_partition_of_fp32_groups": [flat.chunk(2)[rank]]}
        else:
            halves = [torch.cat([v.flatten(), torch.zeros(v.numel() % 2)]) for v in weights().values()]
            state = {"fp32_flat_groups": [torch.cat([half.chunk(2)[rank] for half in halves])]}
        part = f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state}, step / part)
    assert same(read_weights(tmp_path))
    assert not Settings.ran


@pytest.mark.parametrize("kind", ["without_zero", "partly_trained", "stripped_of_its_optimizer_states"])
def test_weights_without_master_weights_are_taken_from_deepspeeds_module(kind: str, tmp_path: Path) -> None:
    mine = weights()
    shapes = None if kind == "without_zero" else [{"a.weight": mine["a.weight"].shape}]
    torch.save({"module": mine, "param_shapes": shapes}, tmp_path / "mp_rank_00_model_states.pt")
    if kind == "partly_trained":
        state = {"single_partition_of_fp32_groups": [mine["a.weight"].flatten()]}
        part = tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": state}, part)
    assert same(read_weights(tmp_path))


@pytest.mark.parametrize("content", [b"", b"not a torch file", b"PK\x03\x04 cut off"])
def test_a_damaged_torch_file_is_refused_with_the_reason_in_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot read model.pt without running it: .*\w") as refused:
        read_weights(tmp_path / "model.pt")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["absent", "model.npz", "empty"])
def test_what_cannot_be_read_is_said_with_what_can(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.npz").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"expected \*.safetensors, a torch file"):
        read_weights(tmp_path / name)
