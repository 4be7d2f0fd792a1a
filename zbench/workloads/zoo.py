"""The models of `zoo.toml`: many architectures in tiny sizes, each with the form of its batch.

`model: zbench.workloads.zoo:build` with `options: {architecture: NAME}` trains one of them, `sweeps/zoo.yaml`
trains all.
"""

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from zbench.errors import UsageError, nearest

TABLE = Path(__file__).with_name("zoo.toml")


@dataclass(frozen=True, slots=True)
class Entry:
    """One architecture.

    model: a class of transformers, or `module:Class`. batch: argument of forward -> its shape and range.
    sizes: configuration keys, ignored by a configuration that lacks them. config: keys of this architecture.
    note: a remark for the table in the docs.
    """

    name: str
    family: str
    model: str
    batch: Mapping[str, Mapping[str, Any]]
    sizes: Mapping[str, Any]
    config: Mapping[str, Any]
    note: str


@cache
def table() -> dict[str, Entry]:
    """Return name -> architecture in the order of the file."""
    document = tomllib.loads(TABLE.read_text())
    tiny, batches, families = (document.pop(name) for name in ("tiny", "batches", "families"))
    entries: dict[str, Entry] = {}
    for family, lines in document.items():
        common = families[family]
        sizes = tiny | common.get("config", {})
        for name, value in lines.items():
            line = value if isinstance(value, dict) else {"model": value}
            batch = batches[line.get("batch", common["batch"])]
            config, note = line.get("config", {}), line.get("note", "")
            entries[name] = Entry(name, family, line["model"], batch, sizes, config, note)
    return entries


def build(architecture: str, checkpointing: bool = False) -> nn.Module:
    """Return an architecture of the zoo with random weights. UsageError for an unknown name.

    checkpointing: recompute activations in backward, per layer if the model supports it, else all at once.
    """
    entry = table().get(architecture)
    if entry is None:
        raise UsageError(
            f"workload.options.architecture: the zoo has no {architecture!r}{nearest(architecture, table())}"
        )
    return ZooModel(entry, checkpointing=checkpointing)


class ZooModel(nn.Module):
    """An architecture as a user's own model: it makes its batches, and its forward returns the loss."""

    def __init__(self, entry: Entry, *, checkpointing: bool) -> None:
        super().__init__()
        self._entry = entry
        self.model = _transformers_model(entry) if ":" not in entry.model else _module(entry)
        by_layer = checkpointing and getattr(self.model, "supports_gradient_checkpointing", False)
        self._whole = checkpointing and not by_layer
        if by_layer:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]

    def make_batch(self, generator: torch.Generator, batch_size: int, length: int) -> tuple[Tensor, ...]:
        """Return one tensor for each argument of the model, in the order of the table."""
        return tuple(_drawn(how, generator, batch_size, length) for how in self._entry.batch.values())

    def count_flops(self, batch_size: int, length: int) -> None:
        """Return None (unknown): counting FLOPs takes longer than training such a small model."""

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the model's own loss, or the sum of the mean squares of its outputs."""
        args: dict[str, Any] = dict(zip(self._entry.batch, batch, strict=True))
        output = checkpoint(self.model, use_reentrant=False, **args) if self._whole else self.model(**args)
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor):
            return loss
        outputs = output if isinstance(output, tuple) else (output,)
        return torch.stack([value.float().square().mean() for value in outputs]).sum()


def _drawn(how: Mapping[str, Any], generator: torch.Generator, batch_size: int, length: int) -> Tensor:
    sizes = {"B": batch_size, "T": length}
    shape = [sizes[part] if part in sizes else int(part) for part in how["shape"].split()]
    if "below" in how:
        least = int(how.get("plus", 0))
        return torch.randint(least, least + int(how["below"]), shape, generator=generator)
    return torch.randn(shape, generator=generator)


def _transformers_model(entry: Entry) -> nn.Module:
    import transformers

    model_class = getattr(transformers, entry.model)
    model: nn.Module = model_class(_config(model_class.config_class, entry.sizes, entry.config))
    return model


def _config(config_class: Any, sizes: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """Return a configuration with those `sizes` that it has (also nested ones), overridden by `overrides`."""
    nested = {
        name: _config(inner, sizes, overrides.get(name, {})).to_dict()
        for name, inner in config_class.sub_configs.items()
        if inner.__name__ != "AutoConfig"
    }
    aliases = config_class.attribute_map
    fields = config_class(**nested).to_dict()
    fitting = {aliases.get(key, key): value for key, value in sizes.items()}
    scalars = {aliases.get(key, key): value for key, value in overrides.items() if key not in nested}
    return config_class(**{key: value for key, value in fitting.items() if key in fields} | nested | scalars)


def _module(entry: Entry) -> nn.Module:
    """Return a module of another package; models of torch's FSDP tests are built without FSDP, on the CPU."""
    module_name, name = entry.model.split(":")
    module = importlib.import_module(module_name)
    model_class = getattr(module, name)
    if not hasattr(model_class, "init"):
        plain: nn.Module = model_class(**entry.config)
        return plain
    group = module.DummyProcessGroup(rank=0, size=1)
    model: nn.Module = model_class.init(
        group, module.FSDPInitMode.NO_FSDP, module.DEVICEInitMode.DEVICE_NEVER
    )
    return model
