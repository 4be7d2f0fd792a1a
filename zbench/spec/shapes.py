"""Sizes of models: presets of the built-in models, and transformers configurations of some language models.

The workload builds models of these sizes; the check of a sweep file reads them. There are no weights. Source:
the `config.json` of each model on https://huggingface.co (openai-community/gpt2,
meta-llama/Meta-Llama-3-8B and -70B, Qwen/Qwen3-0.6B and -8B).
"""

import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from zbench.errors import UsageError, nearest
from zbench.spec.base import SpecModel
from zbench.spec.document import read_named
from zbench.spec.problems import ProblemsError, problems_of

PREFIX = "hf:"
_TABLES = ("configuration_auto.py", "auto_mappings.py")
_TEXT = re.compile(r"[\"']([a-z][a-z0-9_.-]*)[\"']")
_LLAMA_3 = {
    "model_type": "llama", "vocab_size": 128_256, "num_key_value_heads": 8, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN_3 = {
    "model_type": "qwen3", "vocab_size": 151_936, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2"},
    "llama-3-8b": {
        **_LLAMA_3, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-3-70b": {
        **_LLAMA_3, "hidden_size": 8192, "intermediate_size": 28_672, "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "qwen3-0.6b": {
        **_QWEN_3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "tie_word_embeddings": True,
    },
    "qwen3-8b": {
        **_QWEN_3, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Lower-case name -> keys of its transformers configuration."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Keys of a configuration that may say how many layers it has."""

_POSITIONS = ("max_position_embeddings", "n_positions")


def bundled(name: str) -> dict[str, Any] | None:
    """Return the configuration of a bundled shape such as `Llama-3-8B` or `meta-llama/Meta-Llama-3-8B`."""
    shape_name = name.lower().rpartition("/")[2].removeprefix("meta-")
    return SHAPES.get(shape_name)


def config_file(name: str, base_dir: Path) -> Path | None:
    """Return the file of `hf:NAME`, if NAME is the path of a file or of a folder with `config.json`."""
    place = base_dir / name
    place = place / "config.json" if place.is_dir() else place
    return place if place.is_file() else None


def configuration(model: str, base_dir: Path) -> Mapping[str, Any]:
    """Return the configuration of `hf:NAME`; empty for another model, and where none is known."""
    name = model.removeprefix(PREFIX)
    if name == model:
        return {}
    file = config_file(name, base_dir)
    read = read_named(file).data if file else bundled(name)
    return read if isinstance(read, Mapping) else {}


def layers_of(config: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return the key for the number of layers of a transformers model, and the number, if it is there."""
    default = "n_layer" if config.get("model_type") == "gpt2" else LAYERS[0]
    key = next((key for key in LAYERS if key in config), default)
    return key, config.get(key)


def positions_of(config: Mapping[str, Any], options: Mapping[str, Any]) -> int | None:
    """Return the longest sequence of a transformers model with these options; None where neither says it."""
    values = [source.get(key) for source in (options, config) for key in _POSITIONS]
    default = 1024 if config.get("model_type") == "gpt2" else None  # of its class, where its file has none
    return next((value for value in values if isinstance(value, int)), default)


def mistake(model: str, base_dir: Path) -> str | None:
    """Return why `hf:NAME` cannot be built here, with the remedy, or None. Does not import transformers."""
    name = model.removeprefix(PREFIX)
    file = config_file(name, base_dir)
    if bundled(name) is None and file is None:
        return (
            f"{model}: no such config.json or folder with one, and no bundled shape ({', '.join(SHAPES)});"
            " nothing is downloaded: fetch the model's config.json and name its path"
        )
    transformers = importlib.util.find_spec("transformers")
    if transformers is None:
        return f"{model} needs transformers; run `pip install 'zbench[hf]'`"
    if file is None:
        return None
    try:
        written = read_named(file).data
    except UsageError as error:
        return f"{model}: {error}"
    kind = written.get("model_type") if isinstance(written, Mapping) else None
    if not isinstance(kind, str):
        return (
            f"{model}: {file} has no model_type, so it does not configure a transformers model; name another"
        )
    kinds = _model_types(tuple(transformers.submodule_search_locations or ()))
    if not kinds or kind in kinds:
        return None
    return (
        f"{model}: the installed transformers has no architecture {kind!r}{nearest(kind, kinds)}; install a"
        " newer one (`pip install -U transformers`), or name another config.json"
    )


@cache
def _model_types(places: tuple[str, ...]) -> frozenset[str]:
    """Return the strings in transformers' tables of model types; empty if the tables are not found."""
    tables = (Path(place, "models", "auto", name) for place in places for name in _TABLES)
    texts = [table.read_text() for table in tables if table.is_file()]
    return frozenset(_TEXT.findall("\n".join(texts)))


_Size = Annotated[int, Field(ge=1)]


class GptShape(SpecModel):
    """Sizes of `gpt`; `options` overrides any of them. GPT_PRESETS gives parameter counts in comments."""

    layers: _Size
    width: _Size
    heads: _Size
    vocabulary: _Size = 256
    tied_head: bool = False


class MlpShape(SpecModel):
    """Sizes of `mlp`; `options` overrides any of them."""

    layers: _Size = 3
    hidden: _Size = 256
    vocabulary: _Size = 256


GPT_PRESETS: dict[str, GptShape] = {
    "nano": GptShape(layers=3, width=128, heads=4),  # 0.7 M
    "micro": GptShape(layers=4, width=256, heads=8),  # 3.3 M
    "tiny": GptShape(layers=6, width=512, heads=8),  # 19 M
    "mini": GptShape(layers=8, width=640, heads=10),  # 40 M
    "small": GptShape(layers=12, width=768, heads=12),  # 85 M
    "medium": GptShape(layers=24, width=1024, heads=16),  # 303 M
    "large": GptShape(layers=36, width=1280, heads=20),  # 709 M
    "xl": GptShape(layers=48, width=1600, heads=25),  # 1.5 G
}
MLP_PRESETS: dict[str, MlpShape] = {"nano": MlpShape(), "small": MlpShape(hidden=2048)}

_Shape = TypeVar("_Shape", GptShape, MlpShape)


def gpt_shape(preset: str | None, options: Mapping[str, Any]) -> GptShape:
    """Return the sizes of a `gpt` workload. UsageError for an unknown preset or option, or invalid sizes."""
    shape = _resolve(GPT_PRESETS, preset, options)
    if shape.width % shape.heads:
        raise UsageError(
            f"gpt: width must be a multiple of heads, got width {shape.width} and heads {shape.heads}; "
            "change workload.options"
        )
    return shape


def mlp_shape(preset: str | None, options: Mapping[str, Any]) -> MlpShape:
    """Return the sizes of an `mlp` workload. UsageError for an unknown preset or option."""
    return _resolve(MLP_PRESETS, preset, options)


def _resolve(presets: Mapping[str, _Shape], preset: str | None, options: Mapping[str, Any]) -> _Shape:
    name = preset or "nano"
    if name not in presets:
        raise UsageError(
            f"unknown preset {name!r}{nearest(name, presets)}; expected one of {', '.join(presets)}"
        )
    shape = presets[name]
    shape_class = type(presets[name])
    try:
        return shape_class.model_validate(shape.model_dump() | dict(options))
    except ValidationError as error:
        raise UsageError(str(ProblemsError(problems_of(error, dict(options), shape_class)))) from None
