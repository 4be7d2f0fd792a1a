"""Language models of transformers: their sizes, losses and operations; models that cannot be built."""

import json
from pathlib import Path

import pytest
import torch

from tests.workloads.conftest import load
from zbench.errors import UsageError
from zbench.workloads.custom import choose, language_model_loss

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
