"""Shapes of well-known language models, as transformers' configurations write them; no weights.

Sources: the `config.json` of each model on https://huggingface.co (openai-community/gpt2,
meta-llama/Meta-Llama-3-8B and -70B, Qwen/Qwen3-0.6B and -8B).
"""

import importlib.util
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.spec.document import read_document
from zbench.spec.suggest import nearest

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
"""Lower-case name -> configuration."""


def bundled(name: str) -> dict[str, Any] | None:
    """Return the configuration of a bundled shape: `Llama-3-8B`, with or without the maker's name."""
    known = name.lower().rpartition("/")[2].removeprefix("meta-")
    return SHAPES.get(known)


def config_file(name: str, base_dir: Path) -> Path | None:
    """Return the `config.json` that `hf:NAME` names by its path or by its folder's, or None."""
    place = base_dir / name
    place = place / "config.json" if place.is_dir() else place
    return place if place.is_file() else None


def mistake(model: str, base_dir: Path) -> str | None:
    """Return why `hf:NAME` cannot be built here, with the remedy, or None."""
    name = model.removeprefix(PREFIX)
    if bundled(name) is None and config_file(name, base_dir) is None:
        return (
            f"{model}: no such config.json or folder with one, and no bundled shape ({', '.join(SHAPES)});"
            " nothing is downloaded: fetch the model's config.json and name its path"
        )
    found = importlib.util.find_spec("transformers")
    if found is None:
        return f"{model} needs transformers; run `pip install 'zbench[hf]'`"
    file = config_file(name, base_dir)
    return None if file is None else _unusable(model, file, list(found.submodule_search_locations or ()))


def _unusable(model: str, file: Path, transformers: Sequence[str]) -> str | None:
    """Return why transformers makes nothing of a `config.json`, or None. It is read, not imported."""
    try:
        written = read_document(file).data
    except UsageError as error:
        return f"{model}: {error}"
    kind = written.get("model_type") if isinstance(written, Mapping) else None
    if not isinstance(kind, str):
        return (
            f"{model}: {file} has no model_type, so it is no transformers model's configuration; name another"
        )
    known = _model_types(tuple(transformers))
    if not known or kind in known:
        return None
    return (
        f"{model}: the installed transformers has no architecture {kind!r}{nearest(kind, known)}; install a"
        " newer one (`pip install -U transformers`), or name another config.json"
    )


@cache
def _model_types(places: tuple[str, ...]) -> frozenset[str]:
    """Return what may be a model_type: the texts in transformers' tables; empty where these are elsewhere."""
    tables = (Path(place, "models", "auto", name) for place in places for name in _TABLES)
    texts = [table.read_text() for table in tables if table.is_file()]
    return frozenset(_TEXT.findall("\n".join(texts)))
