"""The sizes of models that zbench names: possible, ordered, and those that their makers published."""

from typing import Any

import pytest

from zbench.spec.shapes import (
    GPT_PRESETS,
    MLP_PRESETS,
    SHAPES,
    gpt_shape,
    mlp_shape,
)


def test_a_preset_stays_what_records_call_by_its_name() -> None:
    gpt = {name: gpt_shape(name, {}) for name in GPT_PRESETS}
    assert {name: (shape.layers, shape.width, shape.heads) for name, shape in gpt.items()} == {
        "nano": (3, 128, 4), "micro": (4, 256, 8), "tiny": (6, 512, 8), "mini": (8, 640, 10),
        "small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25),
    }  # fmt: skip
    assert {(shape.vocabulary, shape.tied_head) for shape in gpt.values()} == {(256, False)}
    mlp = {name: mlp_shape(name, {}) for name in MLP_PRESETS}
    sizes = {name: (shape.layers, shape.hidden, shape.vocabulary) for name, shape in mlp.items()}
    assert sizes == {"nano": (3, 256, 256), "small": (3, 2048, 256)}
    assert (gpt_shape(None, {}), mlp_shape(None, {})) == (gpt["nano"], mlp["nano"])


def parameters(shape: dict[str, Any]) -> int:
    """Return how many parameters the transformer of a Llama or Qwen 3 configuration has."""
    hidden, heads, groups = (shape[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    head = shape.get("head_dim", hidden // heads)
    norms = 2 * hidden + (2 * head if shape["model_type"] == "qwen3" else 0)
    layer = 2 * hidden * head * (heads + groups) + 3 * hidden * shape["intermediate_size"] + norms
    embeddings = shape["vocab_size"] * hidden * (1 if shape["tie_word_embeddings"] else 2)
    return embeddings + shape["num_hidden_layers"] * layer + hidden


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3-8b", 8_030_261_248),
        ("qwen3-0.6b", 596_049_920),
    ],
)
def test_a_bundled_shape_has_the_parameters_that_its_maker_published(name: str, published: int) -> None:
    assert parameters(SHAPES[name]) == published
