"""Sizes of models: presets of the built-in models, and transformers configurations, bundled or in files.

The workload builds models of these sizes; the check of a sweep file reads them. There are no weights.
"""

import importlib.util
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from zbench.errors import UsageError, nearest
from zbench.spec.base import SpecModel
from zbench.spec.bundled import NAMES, shape_of
from zbench.spec.document import read_named
from zbench.spec.problems import ProblemsError, problems_of

PREFIX = "hf:"
_TABLES = ("configuration_auto.py", "auto_mappings.py")
_TEXT = re.compile(r"[\"']([a-z][a-z0-9_.-]*)[\"']")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_SIMILAR = 3  # names that are suggested, at most
HEADS = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
    "ForTokenClassification": "AutoModelForTokenClassification",
    "ForQuestionAnswering": "AutoModelForQuestionAnswering",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
}
"""End of an architecture's name -> the class of transformers that builds it."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Keys of a configuration that may say how many layers it has."""

_POSITIONS = ("max_position_embeddings", "n_positions")


def config_file(name: str, base_dir: Path) -> Path | None:
    """Return the file of `hf:NAME`: the path of a file, of a folder with `config.json`, or a file that the
    cache of transformers has of the repository NAME.
    """
    place = base_dir / name
    place = place / "config.json" if place.is_dir() else place
    if place.is_file():
        return place
    return None if shape_of(name) is not None else _cached_file(name)


def _cached_file(name: str) -> Path | None:
    """Return the `config.json` of a repository's main revision in the cache of transformers."""
    if not _REPOSITORY.fullmatch(name):
        return None
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    try:
        revision = (cache / "refs" / "main").read_text().strip()
    except OSError:
        return None
    file = cache / "snapshots" / revision / "config.json"
    return file if file.is_file() else None


def similar(name: str) -> str:
    """Return ` (did you mean 'hf:Llama-3.1-8B'?)`: shapes with this name as a part, or the most similar."""
    short = name.lower().rpartition("/")[2]
    names = [NAMES[key] for key in NAMES if short in (key, *key.split("-"))]
    if not names:
        names = [NAMES[key] for key in get_close_matches(short, NAMES, n=_SIMILAR)]
    shown = " or ".join(repr(f"{PREFIX}{each}") for each in names[:_SIMILAR])
    return f" (did you mean {shown}?)" if shown else ""


def head_of(config: Mapping[str, Any]) -> str:
    """Return the class of transformers that builds the model of a configuration, by its `architectures`.

    A configuration without them is that of a causal language model. UsageError for a kind of model whose
    batches are not known.
    """
    architectures = config.get("architectures") or ["ForCausalLM"]
    name = str(architectures[0]) if isinstance(architectures, list | tuple) else str(architectures)
    head = next((head for suffix, head in HEADS.items() if name.endswith(suffix)), None)
    if head is None or "vision_config" in config or "audio_config" in config:
        raise UsageError(
            f"its architecture is {name}, and only batches of text for {', '.join(HEADS)} are known; write"
            " your own model as module:callable with make_batch (zbench init --help)"
        )
    return head


def configuration(model: str, base_dir: Path) -> Mapping[str, Any]:
    """Return the configuration of `hf:NAME`; empty for another model, and where none is known."""
    name = model.removeprefix(PREFIX)
    if name == model:
        return {}
    file = config_file(name, base_dir)
    read = read_named(file).data if file else shape_of(name)
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


DTYPES = ("dtype", "torch_dtype")
"""Keys of a configuration that say in which dtype its weights are published."""


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """Return the dtype that a transformers model is published in; None if its file does not say it."""
    return next((config[key] for key in DTYPES if isinstance(config.get(key), str)), None)


def mistake(model: str, base_dir: Path) -> str | None:
    """Return why `hf:NAME` cannot be built here, with the remedy, or None. Does not import transformers."""
    name = model.removeprefix(PREFIX)
    file = config_file(name, base_dir)
    if shape_of(name) is None and file is None:
        known = similar(name) or f" ({', '.join(NAMES.values())})"
        return (
            f"{model}: no such config.json or folder with one, and no bundled shape{known};"
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
    try:
        head_of(written)
    except UsageError as error:
        return f"{model}: {error}"
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
