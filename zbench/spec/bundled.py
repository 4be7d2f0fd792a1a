"""Transformers configurations of models that people ask for, by name. There are no weights.

Each row has the sizes in the `config.json` of the repository that it names on https://huggingface.co. The
tests build every model and compare its number of parameters with the published one.
"""

from typing import Any

_LLAMA_3_ROPE = {
    "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def _shape(kind: str, dtype: str, *sizes: int, **keys: Any) -> dict[str, Any]:
    """Return a configuration. sizes: width, width of the MLP, layers, heads."""
    return {"model_type": kind, "dtype": dtype, **dict(zip(_SIZES, sizes, strict=True)), **keys}


def _llama_2(*sizes: int, groups: int) -> dict[str, Any]:
    keys = {"num_key_value_heads": groups, "vocab_size": 32_000, "max_position_embeddings": 4096}
    return _shape("llama", "float16", *sizes, **keys, rms_norm_eps=1e-5, tie_word_embeddings=False)


def _llama_3(*sizes: int, factor: float = 0.0, tied: bool = False) -> dict[str, Any]:
    """factor: of the rotary embedding's scaling, from version 3.1 on."""
    scaled = {"rope_scaling": {**_LLAMA_3_ROPE, "factor": factor}} if factor else {}
    keys = {"num_key_value_heads": 8, "vocab_size": 128_256, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5}
    longest = 131_072 if factor else 8192
    return _shape(
        "llama", "bfloat16", *sizes, **keys, **scaled, max_position_embeddings=longest,
        tie_word_embeddings=tied,
    )  # fmt: skip


def _smollm_2(*sizes: int, groups: int, theta: float) -> dict[str, Any]:
    keys = {"num_key_value_heads": groups, "vocab_size": 49_152, "max_position_embeddings": 8192}
    return _shape(
        "llama", "bfloat16", *sizes, **keys, rms_norm_eps=1e-5, rope_theta=theta, tie_word_embeddings=True
    )


def _mistral(vocabulary: int, theta: float, window: int | None) -> dict[str, Any]:
    keys = {"num_key_value_heads": 8, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5}
    return _shape(
        "mistral", "bfloat16", 4096, 14_336, 32, 32, **keys, vocab_size=vocabulary, rope_theta=theta,
        sliding_window=window, tie_word_embeddings=False,
    )  # fmt: skip


def _qwen_2_5(*sizes: int, groups: int, longest: int, eps: float = 1e-6) -> dict[str, Any]:
    is_small = sizes[0] <= 2048  # up to 3 B parameters
    return _shape(
        "qwen2", "bfloat16", *sizes, num_key_value_heads=groups, max_position_embeddings=longest,
        vocab_size=151_936 if is_small else 152_064, rms_norm_eps=eps, rope_theta=1_000_000.0,
        tie_word_embeddings=is_small,
    )  # fmt: skip


def _qwen_3(*sizes: int, tied: bool = False) -> dict[str, Any]:
    keys = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "rms_norm_eps": 1e-6}
    return _shape(
        "qwen3", "bfloat16", *sizes, **keys, max_position_embeddings=40_960, rope_theta=1_000_000.0,
        tie_word_embeddings=tied,
    )  # fmt: skip


def _pythia(width: int, layers: int, heads: int, vocabulary: int = 50_304) -> dict[str, Any]:
    keys = {"vocab_size": vocabulary, "max_position_embeddings": 2048, "rotary_pct": 0.25}
    return _shape("gpt_neox", "float16", width, 4 * width, layers, heads, **keys, tie_word_embeddings=False)


def _bert(*sizes: int) -> dict[str, Any]:
    keys = {"vocab_size": 30_522, "max_position_embeddings": 512, "architectures": ["BertForMaskedLM"]}
    return _shape("bert", "float32", *sizes, **keys)


def _gpt_2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads}


_NAMED: dict[str, dict[str, Any]] = {
    "openai-community/gpt2": {"model_type": "gpt2"},
    "openai-community/gpt2-medium": _gpt_2(1024, 24, 16),
    "openai-community/gpt2-large": _gpt_2(1280, 36, 20),
    "openai-community/gpt2-xl": _gpt_2(1600, 48, 25),
    "meta-llama/Llama-2-7b": _llama_2(4096, 11_008, 32, 32, groups=32),
    "meta-llama/Llama-2-13b": _llama_2(5120, 13_824, 40, 40, groups=40),
    "meta-llama/Llama-2-70b": _llama_2(8192, 28_672, 80, 64, groups=8),
    "meta-llama/Llama-3-8B": _llama_3(4096, 14_336, 32, 32),
    "meta-llama/Llama-3-70B": _llama_3(8192, 28_672, 80, 64),
    "meta-llama/Llama-3.1-8B": _llama_3(4096, 14_336, 32, 32, factor=8.0),
    "meta-llama/Llama-3.1-70B": _llama_3(8192, 28_672, 80, 64, factor=8.0),
    "meta-llama/Llama-3.1-405B": _llama_3(16_384, 53_248, 126, 128, factor=8.0),
    "meta-llama/Llama-3.2-1B": _llama_3(2048, 8192, 16, 32, factor=32.0, tied=True),
    "meta-llama/Llama-3.2-3B": _llama_3(3072, 8192, 28, 24, factor=32.0, tied=True),
    "meta-llama/Llama-3.3-70B": _llama_3(8192, 28_672, 80, 64, factor=8.0),
    "TinyLlama/TinyLlama-1.1B": _shape(
        "llama", "bfloat16", 2048, 5632, 22, 32, num_key_value_heads=4, vocab_size=32_000,
        max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=False,
    ),
    "HuggingFaceTB/SmolLM2-135M": _smollm_2(576, 1536, 30, 9, groups=3, theta=100_000.0),
    "HuggingFaceTB/SmolLM2-360M": _smollm_2(960, 2560, 32, 15, groups=5, theta=100_000.0),
    "HuggingFaceTB/SmolLM2-1.7B": _smollm_2(2048, 8192, 24, 32, groups=32, theta=130_000.0),
    "mistralai/Mistral-7B-v0.1": _mistral(32_000, 10_000.0, 4096),
    "mistralai/Mistral-7B-v0.3": _mistral(32_768, 1_000_000.0, None),
    "Qwen/Qwen2.5-0.5B": _qwen_2_5(896, 4864, 24, 14, groups=2, longest=32_768),
    "Qwen/Qwen2.5-1.5B": _qwen_2_5(1536, 8960, 28, 12, groups=2, longest=131_072),
    "Qwen/Qwen2.5-3B": _qwen_2_5(2048, 11_008, 36, 16, groups=2, longest=32_768),
    "Qwen/Qwen2.5-7B": _qwen_2_5(3584, 18_944, 28, 28, groups=4, longest=131_072),
    "Qwen/Qwen2.5-14B": _qwen_2_5(5120, 13_824, 48, 40, groups=8, longest=131_072, eps=1e-5),
    "Qwen/Qwen2.5-32B": _qwen_2_5(5120, 27_648, 64, 40, groups=8, longest=131_072, eps=1e-5),
    "Qwen/Qwen2.5-72B": _qwen_2_5(8192, 29_568, 80, 64, groups=8, longest=131_072, eps=1e-5),
    "Qwen/Qwen3-0.6B": _qwen_3(1024, 3072, 28, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen_3(2048, 6144, 28, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen_3(2560, 9728, 36, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen_3(4096, 12_288, 36, 32),
    "Qwen/Qwen3-14B": _qwen_3(5120, 17_408, 40, 40),
    "Qwen/Qwen3-32B": _qwen_3(5120, 25_600, 64, 64),
    "microsoft/phi-4": _shape(
        "phi3", "bfloat16", 5120, 17_920, 40, 40, num_key_value_heads=10, vocab_size=100_352,
        max_position_embeddings=16_384, original_max_position_embeddings=16_384, rms_norm_eps=1e-5,
        rope_theta=250_000.0, tie_word_embeddings=False,
    ),
    "EleutherAI/pythia-70m": _pythia(512, 6, 8),
    "EleutherAI/pythia-160m": _pythia(768, 12, 12),
    "EleutherAI/pythia-410m": _pythia(1024, 24, 16),
    "EleutherAI/pythia-1b": _pythia(2048, 16, 8),
    "EleutherAI/pythia-1.4b": _pythia(2048, 24, 16),
    "EleutherAI/pythia-2.8b": _pythia(2560, 32, 32),
    "EleutherAI/pythia-6.9b": _pythia(4096, 32, 32, 50_432),
    "EleutherAI/pythia-12b": _pythia(5120, 36, 40, 50_688),
    "google-bert/bert-base-uncased": _bert(768, 3072, 12, 12),
    "google-bert/bert-large-uncased": _bert(1024, 4096, 24, 16),
}  # fmt: skip
"""Repository, without a `Meta-` or `-hf` in its name -> keys of its transformers configuration."""
SHAPES = {name.lower().rpartition("/")[2]: keys for name, keys in _NAMED.items()}
"""Lower-case name -> the same."""
NAMES = {name.lower().rpartition("/")[2]: name.rpartition("/")[2] for name in _NAMED}
"""Lower-case name -> the name as people write it."""


def shape_of(name: str) -> dict[str, Any] | None:
    """Return the configuration of `Llama-3-8B`, `meta-llama/Meta-Llama-3-8B`, `Llama-2-7b-hf`; else None."""
    short = name.lower().rpartition("/")[2].removeprefix("meta-").removesuffix("-hf")
    if short.startswith("llama-3"):
        short = short.removesuffix("-instruct")  # of the same shape
    return SHAPES.get(short)
