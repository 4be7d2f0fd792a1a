"""The checkpoint that a training script saved: which of its tensors are weights.

Weights are read from safetensors, torch files, and folders of DeepSpeed's. Torch files are read with
`weights_only=True`: nothing in them is run. Classes that torch does not know, as DeepSpeed's checkpoints
hold, are read as inert stand-ins.

A network is a mapping of names to tensors, wherever a torch file has it; the state of an optimizer is none.
The weights of several networks have the keys of their network before their names. Names do not have the
prefixes of wrappers, such as `_orig_mod.` of `torch.compile` and `module.` of DDP.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from zbench.errors import UsageError

_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_PARTS = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt")
_NO_WEIGHTS = ("optim", "rng", "sched", "training_args")  # how files of trainers' begin that hold other state
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_REPLICATED = "module."  # the prefix of DistributedDataParallel, on every name
EXPECTED_FILES = (
    "expected *.safetensors, a torch file (.pt, .pth, .bin), or a folder of them or of DeepSpeed's"
)


Check = Callable[[Path], None]


def read_weights(path: Path, check: Check = lambda _: None) -> dict[str, Tensor]:
    """Return name -> floating-point weight on the CPU; UsageError if there is none to be read.

    path: an existing file or folder. check: called with each file before it is read; may refuse it.
    """
    tensors = _of_folder(path, check) if path.is_dir() else _of_file(path, check)
    weights = {name: value for name, value in tensors.items() if value.is_floating_point()}
    if not weights:
        raise UsageError(f"workload.checkpoint: no weights in {path.name}; {EXPECTED_FILES}")
    return without_wrappers(weights)


def without_wrappers(network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a network under the names that they have in the model without wrappers."""
    named = {_WRAPPERS.sub("", name): value for name, value in network.items()}
    if all(name.startswith(_REPLICATED) for name in named):
        named = {name.removeprefix(_REPLICATED): value for name, value in named.items()}
    return named if len(named) == len(network) else dict(network)


def _of_file(path: Path, check: Check) -> dict[str, Tensor]:
    check(path)
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except Exception as error:
            raise UsageError(f"workload.checkpoint: {path.name} is no safetensors file: {error}") from None
    if path.suffix not in _TORCH:
        raise UsageError(f"workload.checkpoint: cannot read {path.name}; {EXPECTED_FILES}")
    saved = _loaded(path)
    if not isinstance(saved, Mapping):
        raise UsageError(
            f"workload.checkpoint: {path.name} is no mapping of names to tensors; save model.state_dict()"
        )
    return _of_networks(saved)


def _of_networks(saved: Any) -> dict[str, Tensor]:
    """Return the tensors of all networks in what a torch file holds."""
    networks = dict(_networks(saved))
    if len(networks) == 1:
        return next(iter(networks.values()))
    return {
        ".".join([*keys, name]): value
        for keys, network in networks.items()
        for name, value in without_wrappers(network).items()
    }


def _networks(saved: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Yield (keys that lead to it, named tensors) of each network; the state of an optimizer is none.

    A number beside mappings, such as the loss of a checkpoint, is no weight.
    """
    if not isinstance(saved, Mapping) or "param_groups" in saved:
        return
    inner = {name: value for name, value in saved.items() if isinstance(value, Mapping)}
    tensors = {
        str(name): value
        for name, value in saved.items()
        if isinstance(value, Tensor) and (value.ndim > 0 or not inner)
    }
    if tensors:
        yield keys, tensors
    for name, value in inner.items():
        if not str(name).lower().startswith(_NO_WEIGHTS):
            yield from _networks(value, (*keys, str(name)))


def _of_folder(path: Path, check: Check) -> dict[str, Tensor]:
    latest = path / "latest"
    if latest.is_file() and (path / latest.read_text().strip()).is_dir():
        path = path / latest.read_text().strip()
    if (path / "mp_rank_00_model_states.pt").is_file() or list(path.glob("zero_pp_rank_0_*model_states.pt")):
        return _of_deepspeed(path, check)
    for pattern in ("*.safetensors", *(f"*{ending}" for ending in _TORCH)):
        files = sorted(file for file in path.glob(pattern) if not file.name.startswith(_NO_WEIGHTS))
        if files:
            return _of_files(files, check)
    return {}


def _of_files(files: Sequence[Path], check: Check) -> dict[str, Tensor]:
    """Return the weights of files that each hold some; UsageError where two hold another value of one."""
    weights: dict[str, Tensor] = {}
    holders: dict[str, Path] = {}
    for file in files:
        for name, value in _of_file(file, check).items():
            if name in weights and not torch.equal(weights[name], value):
                raise UsageError(
                    f"workload.checkpoint: {holders[name].name} and {file.name} hold different values of"
                    f" {name!r}; name the file that the run trained"
                )
            weights[name], holders[name] = value, file
    return weights


def _of_deepspeed(path: Path, check: Check) -> dict[str, Tensor]:
    """Return the weights of a DeepSpeed checkpoint: float32 masters where ZeRO keeps them."""
    models = [path / "mp_rank_00_model_states.pt", *sorted(path.glob("zero_pp_rank_0_*model_states.pt"))]
    file = next(file for file in models if file.is_file())
    check(file)
    state = _loaded(file)
    module = _of_networks(state.get("module") or {})
    shapes = state.get("param_shapes")
    numbered = {int(match[1]): file for file in path.iterdir() if (match := _PARTS.fullmatch(file.name))}
    for part in numbered.values():
        check(part)
    parts = [_loaded(numbered[rank])["optimizer_state_dict"] for rank in sorted(numbered)]
    if not parts or not shapes:
        return module
    groups = [dict(group) for group in (shapes if isinstance(shapes, list) else [shapes])]
    if "fp32_flat_groups" in parts[0]:  # stage 3: every weight is divided among the ranks
        flat = [torch.cat(list(part["fp32_flat_groups"])) for part in parts]
        return module | dict(_of_stage_3(groups, flat))
    masters = "single_partition_of_fp32_groups"
    if masters in parts[0]:
        for at, group in enumerate(groups):
            module |= dict(_cut(group, torch.cat([part[masters][at] for part in parts])))
    return module


def _cut(shapes: Mapping[str, torch.Size], flat: Tensor) -> Iterator[tuple[str, Tensor]]:
    sizes = [shape.numel() for shape in shapes.values()]
    for (name, shape), part in zip(shapes.items(), flat[: sum(sizes)].split_with_sizes(sizes), strict=True):
        yield name, part.reshape(shape)


def _of_stage_3(groups: list[dict[str, torch.Size]], flat: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights of which each rank has an equal, padded part, one weight after another."""
    at = 0
    ranks = len(flat)
    for name, shape in (item for group in groups for item in group.items()):
        each = -(-shape.numel() // ranks)
        yield name, torch.cat([part[at : at + each] for part in flat])[: shape.numel()].reshape(shape)
        at += each


def _loaded(path: Path) -> Any:
    """Return what a torch file holds, with inert stand-ins for classes that torch does not know."""
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        stand_ins = [(type(name.rpartition(".")[2], (_Inert,), {}), name) for name in unknown]
        with torch.serialization.safe_globals(list(stand_ins)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"workload.checkpoint: cannot read {path.name} without running it: {first}"
        ) from None


class _Inert:
    """Takes the place of a class: keeps nothing and does nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "_Inert":
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take any arguments."""

    def __setstate__(self, _: Any) -> None:
        """Take any state."""
