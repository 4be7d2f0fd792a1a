"""Language models of transformers: their sizes, losses and operations; models that cannot be built."""

import json
from pathlib import Path

import pytest
import torch

from tests.workloads.conftest import load
from zbench.errors import UsageError
from zbench.spec.bundled import SHAPES
from zbench.workloads.custom import choose, language_model_loss
from zbench.workloads.own import language_model_factory, load_config

TINY = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 32}


@pytest.fixture(autouse=True)
def _transformers() -> None:
    pytest.importorskip("transformers")


def test_a_bundled_shape_shrunk_by_options_trains(base_dir: Path) -> None:
    made = load(base_dir, "hf:gpt2", options=TINY, sequence_length=8)
    model = made.make_model()
    batch = made.batch(0, 0, 0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert int(batch[0].max()) < 64
    loss = made.loss(model.eval(), batch)
    loss.backward()
    output = model(batch[0])
    assert output.past_key_values is None, "no cache is kept"
    logits = output.logits[:, :-1]  # the labels are the tokens, shifted
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())
    torch.testing.assert_close(loss, expected)
    matrices = 2 * 12 * 16**2 + 16 * 64
    attention = 2 * 2 * 16 * 8
    assert made.flops_per_micro_batch == 6 * 4 * 8 * (matrices + attention)
    assert torch.equal(model.lm_head.weight, made.make_model().lm_head.weight), "the same at every call"


def test_a_loss_in_chunks_is_the_models_without_its_logits(base_dir: Path) -> None:
    losses = []
    for chunks, calls in ((1, 1), (2, 0)):
        made = load(base_dir, "hf:gpt2", options=TINY, sequence_length=8, loss_chunks=chunks)
        model = made.make_model().eval()
        seen: list[object] = []
        model.register_forward_hook(lambda *given, seen=seen: seen.append(given))
        losses.append(made.loss(model, made.batch(0, 0, 0)))
        assert len(seen) == calls
    torch.testing.assert_close(*losses)


def test_a_config_of_ones_own_in_a_folder(base_dir: Path) -> None:
    (base_dir / "net").mkdir()
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 50}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = {"model_type": "llama", "dtype": "bfloat16", "head_dim": 4, **small, **heads}
    matrices = 16 * (8 + 4 + 4) + 8 * 16 + 3 * 16 * 32 + 16 * 50
    (base_dir / "net" / "config.json").write_text(json.dumps(config))
    for name, mode in (("hf:net", True), ("hf:net/config.json", "selective")):
        made = load(base_dir, name, sequence_length=8, activation_checkpointing=mode)
        model = made.make_model()
        assert model.is_gradient_checkpointing
        assert model.config.num_key_value_heads == 1
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert made.flops_per_micro_batch == 6 * 4 * 8 * (matrices + 2 * 2 * 4 * 8)
        model.get_input_embeddings().requires_grad_(False)
        made.loss(model, made.batch(0, 0, 0)).backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_a_dataset_of_tokens_alone_trains_a_language_model(base_dir: Path) -> None:
    made = load(base_dir, "hf:gpt2", "mine:tokens", options=TINY, sequence_length=8, loss_chunks=2)
    batch = made.batch(0, 0, 0)
    assert made.size(batch) == 4 * 3
    assert made.loss(made.make_model(), batch).ndim == 0


def test_a_transformers_model_of_a_user_is_taken(base_dir: Path) -> None:
    (base_dir / "theirs.py").write_text(
        "from transformers import GPT2Config, GPT2LMHeadModel\n"
        "def make(**sizes): return GPT2LMHeadModel(GPT2Config(**sizes))\n"
    )
    made = load(base_dir, "theirs:make", options=TINY | {"vocab_size": 256}, sequence_length=8)
    assert made.loss(made.make_model(), made.batch(0, 0, 0)).ndim == 0


PUBLISHED = {
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800, "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824, "llama-3.3-70b": 70_553_706_496, "tinyllama-1.1b": 1_100_048_384,
    "smollm2-135m": 134_515_008, "smollm2-360m": 361_821_120, "smollm2-1.7b": 1_711_376_384,
    "mistral-7b-v0.1": 7_241_732_096, "mistral-7b-v0.3": 7_248_023_552, "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-3b": 3_085_938_688, "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664, "qwen2.5-32b": 32_763_876_352, "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360, "qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264,
    "phi-4": 14_659_507_200, "pythia-70m": 70_426_624, "pythia-160m": 162_322_944,
    "pythia-410m": 405_334_016, "pythia-1b": 1_011_781_632, "pythia-1.4b": 1_414_647_808,
    "pythia-2.8b": 2_775_208_960, "pythia-6.9b": 6_857_302_016, "pythia-12b": 11_846_072_320,
    "bert-base-uncased": 109_514_298, "bert-large-uncased": 335_174_458,
}  # fmt: skip
"""Parameters that each model's page on https://huggingface.co gives, or the page of its makers."""
_SAMPLE = ("llama-2-7b", "qwen2.5-7b", "phi-4", "pythia-1b", "bert-large-uncased", "mistral-7b-v0.1")


@pytest.mark.parametrize(
    "name", [name if name in _SAMPLE else pytest.param(name, marks=pytest.mark.check) for name in PUBLISHED]
)
def test_a_bundled_shape_has_the_parameters_that_its_maker_published(base_dir: Path, name: str) -> None:
    config = load_config(f"hf:{name}", {}, base_dir)
    with torch.device("meta"):
        model = language_model_factory(config, activation_checkpointing=False)()
    assert sum(parameter.numel() for parameter in model.parameters()) == PUBLISHED[name]


def test_every_bundled_shape_is_compared_with_a_published_figure() -> None:
    assert SHAPES.keys() == PUBLISHED.keys()


BERT = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
T5 = {"d_model": 16, "d_ff": 32, "d_kv": 8, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}


@pytest.mark.parametrize(
    ("kind", "sizes", "architecture", "outputs"),
    [
        ("bert", BERT, "BertForSequenceClassification", (4, 3)),
        ("bert", BERT, "BertForTokenClassification", (4, 8, 3)),
        ("bert", BERT, "BertForMaskedLM", (4, 8, 64)),
        ("t5", T5, "T5ForConditionalGeneration", (4, 8, 64)),
    ],
)
def test_a_configuration_builds_the_model_of_its_architecture(
    base_dir: Path, kind: str, sizes: dict[str, int], architecture: str, outputs: tuple[int, ...]
) -> None:
    labels = {str(k): f"class {k}" for k in range(3)}
    keys = {
        "model_type": kind,
        "architectures": [architecture],
        "vocab_size": 64,
        "id2label": labels,
        **sizes,
    }
    (base_dir / "config.json").write_text(json.dumps(keys | sizes))
    made = load(base_dir, "hf:config.json", sequence_length=8)
    model = made.make_model()
    assert type(model).__name__ == architecture
    seen: list[tuple[int, ...]] = []
    model.register_forward_hook(lambda module, given, out: seen.append(tuple(out.logits.shape)))
    loss = made.loss(model, made.batch(0, 0, 0))
    loss.backward()
    assert seen == [outputs]
    assert all(p.grad is not None for p in model.parameters())
    assert made.size(made.batch(0, 0, 0)) == 4 * 8


@pytest.mark.parametrize("layers", [1, 3])
def test_layer_types_follow_from_the_number_of_layers(base_dir: Path, layers: int) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "vocab_size": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    window = {"use_sliding_window": True, "sliding_window": 4}
    config = {"model_type": "qwen3", "num_hidden_layers": 2, **sizes, **heads, **window}
    config["layer_types"] = ["sliding_attention", "full_attention"]
    (base_dir / "config.json").write_text(json.dumps(config))
    made = load(base_dir, "hf:config.json", options={"num_hidden_layers": layers}, sequence_length=8)
    model = made.make_model()
    assert len(model.config.layer_types) == layers
    assert made.loss(model, made.batch(0, 0, 0)).ndim == 0


@pytest.mark.parametrize(
    ("model", "keys", "message"),
    [
        ("hf:gpt3", {}, "no such config.json or folder with one, and no bundled shape"),
        ("hf:gpt2", {"options": {"n_layers": 2}}, "has no 'n_layers' \\(did you mean 'n_layer'"),
        ("hf:gpt2", {"options": TINY, "sequence_length": 64}, "has 32 positions, got 64"),
        ("hf:granite.json", {"loss_chunks": 2}, "sets logits_scaling; leave loss_chunks out"),
        ("hf:gpt2", {"preset": "nano"}, "preset applies to the built-in models"),
        ("hf:Llama-3-8B", {"options": {"num_attention_heads": 0}}, "has no such form"),
    ],
)
def test_what_cannot_be_built_is_refused(
    base_dir: Path, model: str, keys: dict[str, object], message: str
) -> None:
    (base_dir / "granite.json").write_text('{"model_type": "granite", "logits_scaling": 8.0}')
    with pytest.raises(UsageError, match=message):
        load(base_dir, model, **keys)


def test_adapters_of_peft_wrap_a_language_model(tmp_path: Path) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=256
    )
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(transformers.AutoModelForCausalLM.from_config(config), lora)
    tokens = torch.randint(256, (2, 8))
    loss = choose(model, (tokens, tokens), (), None)
    assert loss is language_model_loss
    assert loss(model, (tokens, tokens)).loss.ndim == 0
