"""Shapes of well-known language models, as transformers' configurations write them; no weights.

Sources: the `config.json` of each model on https://huggingface.co (openai-community/gpt2,
meta-llama/Meta-Llama-3-8B and -70B, Qwen/Qwen3-0.6B and -8B).
"""

import importlib.util
from pathlib import Path
from typing import Any

PREFIX = "hf:"
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
    known = name.lower().rsplit("/", 1)[-1].removeprefix("meta-")
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
    if importlib.util.find_spec("transformers") is None:
        return f"{model} needs transformers; run `pip install 'zbench[hf]'`"
    return None
