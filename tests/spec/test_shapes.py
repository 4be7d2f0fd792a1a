"""The sizes of models that zbench names: possible, ordered, and those that their makers published."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.spec.shapes import (
    GPT_PRESETS,
    MLP_PRESETS,
    SHAPES,
    bundled,
    configuration,
    gpt_shape,
    layers_of,
    mistake,
    mlp_shape,
    positions_of,
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


def test_a_head_is_tied_or_not() -> None:
    assert gpt_shape("nano", {"tied_head": True}).tied_head
    with pytest.raises(UsageError, match="tied_head: expected true or false, got 1"):
        gpt_shape("nano", {"tied_head": 1})


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3"])
def test_a_size_is_a_whole_number_of_at_least_1(value: object) -> None:
    assert gpt_shape("nano", {"layers": 1}).layers == 1
    with pytest.raises(UsageError, match=r"layers: expected a (whole number|number of at least 1), got"):
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


@pytest.mark.parametrize(
    ("maker", "positions", "epsilon", "theta"),
    [("llama", 8192, 1e-5, 500_000), ("qwen3", 40_960, 1e-6, 1_000_000)],
)
def test_a_bundled_shape_computes_what_its_maker_published(
    maker: str, positions: int, epsilon: float, theta: float
) -> None:
    shapes = [shape for shape in SHAPES.values() if shape["model_type"] == maker]
    assert {shape["max_position_embeddings"] for shape in shapes} == {positions}
    assert {(shape["rms_norm_eps"], shape["rope_theta"]) for shape in shapes} == {(epsilon, theta)}


@pytest.mark.parametrize("name", ["Llama-3-8B", "meta-llama/Meta-Llama-3-8B", "a/mirror/of/llama-3-8b"])
def test_a_bundled_shape_is_found_with_and_without_its_makers_name(name: str) -> None:
    assert bundled(name) is SHAPES["llama-3-8b"]


@pytest.mark.parametrize(
    ("written", "layers"),
    [
        ({"model_type": "gpt2"}, ("n_layer", None)),
        ({"model_type": "llama"}, ("num_hidden_layers", None)),
        ({}, ("num_hidden_layers", None)),
        ({"model_type": "gpt2", "n_layer": 7}, ("n_layer", 7)),
        ({"model_type": "mpt", "n_layers": 7}, ("n_layers", 7)),
        ({"model_type": "t5", "num_layers": 7}, ("num_layers", 7)),
        ({"num_layers": 3, "num_hidden_layers": 7}, ("num_hidden_layers", 7)),
    ],
)
def test_layers_are_counted_by_the_key_that_a_configuration_has(
    written: dict[str, Any], layers: tuple[str, int | None]
) -> None:
    assert layers_of(written) == layers


def test_a_configuration_is_read_from_a_file_a_folder_or_the_bundled(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "known"}')
    (tmp_path / "list.json").write_text("[1]")
    for place in ("hf:mine", "hf:mine/config.json"):
        assert configuration(place, tmp_path) == {"model_type": "known"}
    assert configuration("hf:GPT2", tmp_path) == {"model_type": "gpt2"}
    assert [configuration(name, tmp_path) for name in ("gpt2", "hf:list.json", "hf:absent")] == [{}] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "nothing is downloaded: fetch the model's config.json and name its path"),
        ("{", "new.json:1: not JSON"),
        ("[1]", "has no model_type"),
        ('{"model_type": 3}', "has no model_type"),
        ('{"model_type": "known"}', None),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_with_the_remedy(
    text: str | None, message: str | None, tmp_path: Path, transformers: ModuleSpec
) -> None:
    if text is not None:
        (tmp_path / "new.json").write_text(text)
    told = mistake("hf:new.json", tmp_path)
    assert told is None if message is None else message in (told or "")
    assert mistake("hf:gpt2", tmp_path) is None


@pytest.fixture
def transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleSpec:
    """Install a transformers that has one architecture, `known`."""
    table = tmp_path / "transformers" / "models" / "auto" / "configuration_auto.py"
    table.parent.mkdir(parents=True)
    table.write_text('CONFIG_MAPPING_NAMES = {"known": "KnownConfig"}')
    spec = ModuleSpec("transformers", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "transformers")]
    monkeypatch.setattr(importlib.util, "find_spec", {"transformers": spec}.get)
    return spec


def test_an_architecture_that_transformers_does_not_have_is_told(
    tmp_path: Path, transformers: ModuleSpec
) -> None:
    (tmp_path / "new.json").write_text('{"model_type": "knwon"}')
    assert "no architecture 'knwon' (did you mean 'known'?)" in (mistake("hf:new.json", tmp_path) or "")
    transformers.submodule_search_locations = []
    assert mistake("hf:new.json", tmp_path) is None, "its tables are elsewhere"


def test_without_transformers_a_model_that_is_there_cannot_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "mine.json").write_text('{"model_type": "known"}')
    for name in ("hf:gpt2", "hf:mine.json"):
        assert mistake(name, tmp_path) == f"{name} needs transformers; run `pip install 'zbench[hf]'`"


@pytest.mark.parametrize(
    ("model", "options", "positions"),
    [
        ("hf:gpt2", {}, 1024),
        ("hf:gpt2", {"n_positions": 32}, 32),
        ("hf:Llama-3-8B", {}, 8192),
        ("hf:Llama-3-8B", {"max_position_embeddings": 131072}, 131072),
        ("gpt", {}, None),
    ],
)
def test_the_positions_of_a_model_bound_its_sequence(
    model: str, options: dict[str, Any], positions: int | None
) -> None:
    assert positions_of(configuration(model, Path()), options) == positions
