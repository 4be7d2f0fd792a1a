"""The sizes of models that zbench names: possible, ordered, and those that their makers published."""

import json
from pathlib import Path

import pytest

from zbench.spec.bundled import SHAPES, shape_of
from zbench.spec.shapes import (
    GPT_PRESETS,
    MLP_PRESETS,
    config_file,
    configuration,
    gpt_shape,
    mistake,
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


def test_a_shape_is_known_by_the_names_that_people_write() -> None:
    for name in ("Llama-3-8B", "meta-llama/Meta-Llama-3-8B", "llama-3-8b-instruct"):
        assert shape_of(name) == SHAPES["llama-3-8b"]
    assert shape_of("meta-llama/Llama-2-7b-hf") == SHAPES["llama-2-7b"]
    assert shape_of("Llama-4") is None
    assert len(SHAPES) >= 40


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("70B", "'hf:Llama-2-70b' or 'hf:Llama-3-70B' or 'hf:Llama-3.1-70B'"),
        ("Llama-3.1-7B", "'hf:Llama-3.1-70B' or 'hf:Llama-3.1-8B'"),
        ("qwen3-7b", "'hf:Qwen3-"),
        ("bert", "'hf:bert-base-uncased' or 'hf:bert-large-uncased'"),
    ],
)
def test_a_near_name_is_suggested(name: str, hint: str, tmp_path: Path) -> None:
    problem = mistake(f"hf:{name}", tmp_path)
    assert problem is not None
    assert f"no bundled shape (did you mean {hint}" in problem


@pytest.mark.parametrize("name", ["ViTForImageClassification", "BertModel"])
def test_a_kind_whose_batches_are_not_known_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": [name]}))
    problem = mistake("hf:config.json", tmp_path)
    assert problem is not None
    assert f"its architecture is {name}" in problem
    assert "make_batch" in problem


def test_a_file_in_the_cache_of_transformers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--net"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc123")
    (repository / "snapshots" / "abc123").mkdir(parents=True)
    (repository / "snapshots" / "abc123" / "config.json").write_text('{"model_type": "llama"}')
    assert configuration("hf:someone/net", tmp_path / "elsewhere") == {"model_type": "llama"}
    assert config_file("someone/other", tmp_path) is None
