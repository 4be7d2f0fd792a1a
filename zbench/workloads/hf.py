"""`model: hf:NAME_OR_PATH`: a transformers language model of a `config.json`, with random weights."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zbench.errors import UsageError, nearest
from zbench.spec import shapes


def load_config(model: str, options: Mapping[str, Any], base_dir: Path) -> Any:
    """Return transformers' configuration with `options` set; UsageError for what it does not know."""
    problem = shapes.mistake(model, base_dir)
    if problem:
        raise UsageError(f"workload.model: {problem}")
    from transformers import AutoConfig

    name = model.removeprefix(shapes.PREFIX)
    found = shapes.config_file(name, base_dir)
    try:
        written = json.loads(found.read_text()) if found else shapes.bundled(name)
        kind = dict(written or {})
        made = AutoConfig.for_model(kind.pop("model_type"), **kind)
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UsageError(
            f"workload.model: {model}: not a configuration that transformers can use ({error}); name another"
        ) from None
    known = [*made.to_dict(), *type(made).attribute_map]
    for key, value in options.items():
        if key not in known:
            raise UsageError(f"workload.options: {model} has no {key!r}{nearest(key, known)}")
        setattr(made, key, value)
    made.use_cache = False
    return made


def model_factory(config: Any, *, activation_checkpointing: bool) -> Callable[[], nn.Module]:
    """Return the factory of a causal language model in float32."""

    def make() -> nn.Module:
        from transformers import AutoModelForCausalLM

        try:
            model: nn.Module = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
            if any(p.dtype != torch.float32 for p in model.parameters()):
                model = model.float()
        except (ValueError, KeyError) as error:
            raise UsageError(
                f"workload.model: transformers builds no language model of {type(config).__name__} ({error})"
            ) from None
        if activation_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
        return model

    return make
