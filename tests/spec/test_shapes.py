"""The sizes of models that zbench names: possible, ordered, and those that their makers published."""

from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec.presets import GPT_PRESETS, gpt_shape
from zbench.spec.shapes import SHAPES


def test_every_preset_can_be_built_and_is_larger_than_the_one_before() -> None:
    shapes = [gpt_shape(name, {}) for name in GPT_PRESETS]
    sizes = [shape.layers * shape.width**2 for shape in shapes]
    assert sizes == sorted(set(sizes))
    assert {shape.width // shape.heads for shape in shapes} == {32, 64}


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3"])
def test_a_size_is_a_whole_number_of_at_least_1(value: object) -> None:
    assert gpt_shape("nano", {"layers": 1}).layers == 1
    with pytest.raises(UsageError, match="'layers': expected a whole number of at least 1"):
        gpt_shape("nano", {"layers": value})


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
        ("llama-3-70b", 70_553_706_496),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-8b", 8_190_735_360),
    ],
)
def test_a_bundled_shape_has_as_many_parameters_as_its_maker_published(name: str, published: int) -> None:
    assert parameters(SHAPES[name]) == published
