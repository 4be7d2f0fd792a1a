"""A user's model as it is: its own loss, datasets, transformers; and the contract where it is not met."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
import torch

from zbench.errors import UsageError
from zbench.spec.workload import WorkloadSpec
from zbench.workloads import Workload, build_workload
from zbench.workloads.custom import choose, language_model_loss

MODULE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)
    def forward(self, x):
        return self.line(x)

def loss(model, batch):
    x, y = batch
    return nn.functional.mse_loss(model(x), y)

def dict_loss(model, batch):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])

class Named(Plain):
    def forward(self, y, x):
        return nn.functional.mse_loss(self.line(x), y)

class Output(Plain):
    def forward(self, x, y):
        out = lambda: None
        out.loss = nn.functional.mse_loss(self.line(x), y)
        return out

X = torch.arange(30.0).view(10, 3)
Y = X.sum(1, keepdim=True)

def pairs():
    return TensorDataset(X, Y)

def loader():
    return DataLoader(pairs(), collate_fn=lambda found: [torch.stack(c) * 2 for c in zip(*found)])

class Dicts(Dataset):
    def __len__(self): return 10
    def __getitem__(self, k): return {"x": X[k], "y": Y[k]}

class Stream(IterableDataset):
    def __iter__(self): return iter(X)

class Words(Dicts):
    def __getitem__(self, k): return {"x": "word"}

class Predicts(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.head = nn.Linear(width, 256)
    def forward(self, tokens, targets):
        return nn.functional.cross_entropy(self.head(self.embed(tokens)).flatten(0, 1), targets.flatten())

class Regression(Plain):
    def make_batch(self, generator, micro_batch_size, sequence_length):
        return (torch.randn(micro_batch_size, 3, generator=generator),)
    def forward(self, x):
        return self.line(x).square().mean()

class CountsItself(Regression):
    def count_flops(self, batch_size, length): return 6.0 * batch_size * length

class ListBatch(Regression):
    def make_batch(self, generator, micro_batch_size, sequence_length): return [torch.zeros(1, 3)]

def pretrained(): return Regression().eval()

def frozen_part():
    model = Regression()
    model.kept = nn.BatchNorm1d(1).eval()
    return model

def lazy():
    model = Regression()
    model.line = nn.LazyLinear(1)
    return model

def number(): return 3

def output_loss(output, target): return (output - target).square().mean()

class Counts(Regression):
    def count_tokens(self, batch): return 7

def labels():
    return TensorDataset(X, Y.long())

class Read(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 1)
    def forward(self, place, input_ids): return self.embed(input_ids).mean()

class Reads(Read):
    def forward(self, place, input_ids, labels): return self.embed(input_ids).mean()

class Labelled(Dicts):
    def __getitem__(self, k): return {"place": k, "input_ids": X[k].long(), "labels": torch.tensor([-100, k])}

class Ids(Dicts):
    def __getitem__(self, k): return {"place": k, "input_ids": X[k].long()}

def empty():
    return TensorDataset(X[:0])
"""


@pytest.fixture
def base_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend("")  # restores sys.path afterwards
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def load(base_dir: Path, model: str, dataset: str | None = None, **keys: object) -> Workload:
    data = {"dataset": dataset} if dataset else {"synthetic": True}
    spec = WorkloadSpec.model_validate({"model": model, "data": data, "micro_batch_size": 4, **keys})
    return build_workload(spec, seed=0, world_size=1, base_dir=base_dir)


@pytest.mark.parametrize(
    ("model", "dataset", "keys"),
    [
        ("mine:Plain", "mine:pairs", {"loss": "mine:loss"}),
        ("mine:Plain", "mine:loader", {"loss": "mine:loss"}),
        ("mine:Plain", "mine:Dicts", {"loss": "mine:dict_loss"}),
        ("mine:Named", "mine:Dicts", {}),
        ("mine:Output", "mine:pairs", {}),
    ],
)
def test_every_way_to_a_loss(base_dir: Path, model: str, dataset: str, keys: dict[str, str]) -> None:
    made = load(base_dir, model, dataset, **keys)
    net = made.make_model()
    batch = made.batch(0, 0, 0)
    loss = made.loss(net, batch)
    assert torch.equal(loss, torch.nn.functional.mse_loss(net.line(batch[0]), batch[1]))
    loss.backward()
    assert batch[0].shape == (4, 3)
    assert made.samples_per_micro_batch == 4


@pytest.mark.parametrize(
    ("model", "dataset", "keys", "tokens"),
    [
        ("mine:Predicts", None, {"sequence_length": 5}, 4 * 5),
        ("mine:Counts", None, {}, 7),
        ("mine:Read", "mine:Ids", {}, 4 * 3),
        ("mine:Regression", None, {}, None),
        ("mine:Plain", "mine:labels", {"loss": "mine:loss"}, None),
    ],
)
def test_tokens_are_counted_only_where_the_workload_says_what_one_is(
    base_dir: Path, model: str, dataset: str | None, keys: dict[str, object], tokens: int | None
) -> None:
    made = load(base_dir, model, dataset, **keys)
    batch = made.batch(0, 0, 0)
    assert (made.count_tokens is not None) == (tokens is not None)
    assert made.size(batch) == (tokens or sum(tensor.numel() for tensor in batch))


@pytest.mark.parametrize(
    ("model", "dataset", "weight"),
    [("mine:Counts", None, 7), ("mine:Reads", "mine:Labelled", 4), ("mine:Read", "mine:Ids", 12)],
)
def test_a_loss_counts_by_its_labels_or_else_by_its_tokens(
    base_dir: Path, model: str, dataset: str | None, weight: int
) -> None:
    made = load(base_dir, model, dataset, loss_weighting="tokens")
    assert made.count_weight is not None
    assert made.count_weight(made.batch(0, 0, 0)) == weight
    assert made.loss_weights(0, 2) == [[1.0, 1.0]]
    assert load(base_dir, model, dataset).count_weight is None


def test_samples_follow_from_the_seed_and_a_loader_collates(base_dir: Path) -> None:
    made = load(base_dir, "mine:Plain", "mine:loader", loss="mine:loss")
    one, again, other = (made.data.micro_batch(seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    assert bool((one[0] % 2 == 0).all()), "by its own collate_fn"


def test_other_contents_have_another_fingerprint(base_dir: Path) -> None:
    same = [load(base_dir, "mine:Plain", "mine:pairs", loss="mine:loss").data.fingerprint for _ in range(2)]
    other = load(base_dir, "mine:Plain", "mine:Dicts", loss="mine:dict_loss").data.fingerprint
    assert same[0] == same[1]
    sys.modules["mine"].X.add_(1)
    changed = load(base_dir, "mine:Plain", "mine:Dicts", loss="mine:dict_loss").data.fingerprint
    assert changed != other


@pytest.mark.parametrize(
    ("model", "dataset", "keys", "message"),
    [
        ("mine:Plain", None, {}, r"Plain\.forward\(x\) does not take this micro-batch \(2 tensors\)"),
        ("mine:Plain", "mine:Dicts", {}, r"does not take this micro-batch \(x, y\)"),
        ("mine:Plain", "mine:Stream", {}, "of which no sample can be chosen"),
        ("mine:Plain", "mine:Words", {}, "expected samples that collate to"),
        ("mine:Plain", "mine:empty", {}, "returned an empty TensorDataset"),
        ("mine:Plain", "mine:pairs", {"loss": "mine:X"}, "not callable"),
        ("no_such_module:Model", None, {}, "cannot load 'no_such_module:Model'"),
        ("mine:Missing", None, {}, "cannot load 'mine:Missing'"),
        ("mine:X", None, {}, "is of type Tensor, not callable"),
        ("mine:number", None, {}, "returned a int"),
        (
            "mine:lazy",
            None,
            {},
            r"without a shape \(line\.weight\): call the model once on a batch",
        ),
        ("mine:", None, {}, "names nothing"),
        ("mine:ListBatch", None, {}, "to return a tuple of tensors, got list"),
        ("mine:Predicts", None, {"options": {"depth": 3}}, "unexpected keyword argument 'depth'"),
        ("mine:Predicts", None, {"preset": "nano"}, "workload.preset applies to the built-in models"),
        ("mine:Predicts", None, {"loss_chunks": 2}, "loss_chunks is for gpt and hf:"),
        ("mlp", None, {"loss_chunks": 2}, "loss_chunks is for the language models"),
        ("mine:Regression", None, {"loss_weighting": "tokens"}, r"give the model count_tokens\(batch\)"),
        ("gpt", "mine:pairs", {}, "data.dataset is for a model of your own"),
        ("gpt", None, {"loss": "mine:loss"}, "loss is for a model of your own"),
    ],
)
def test_what_does_not_fit_is_refused(
    base_dir: Path, model: str, dataset: str | None, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load(base_dir, model, dataset, **keys)


def test_a_model_trains_on_tokens_and_may_count_its_own_operations(base_dir: Path) -> None:
    made = load(base_dir, "mine:Predicts", options={"width": 16}, sequence_length=5)
    model = made.make_model()
    assert model.get_parameter("embed.weight").shape == (256, 16)
    assert made.loss(model, made.batch(0, 0, 0)).ndim == 0
    assert made.flops_per_micro_batch == 3 * 2 * 4 * 5 * 16 * 256
    assert load(base_dir, "mine:CountsItself", sequence_length=5).flops_per_micro_batch == 6.0 * 4 * 5


def test_a_model_in_eval_mode_is_trained_and_a_part_that_is_kept_in_it_stays(base_dir: Path) -> None:
    assert all(module.training for module in load(base_dir, "mine:pretrained").make_model().modules())
    frozen = load(base_dir, "mine:frozen_part").make_model()
    modes = {name: module.training for name, module in frozen.named_modules()}
    assert modes == {"": True, "line": True, "kept": False}


def test_a_model_may_make_its_own_batches_and_floats_take_its_dtype(base_dir: Path) -> None:
    made = load(base_dir, "mine:Regression")
    (batch,) = made.batch(2, 0, 0)
    assert batch.shape == (4, 3)
    assert torch.equal(batch, made.batch(2, 0, 0)[0])
    assert not torch.equal(batch, made.batch(3, 0, 0)[0])
    assert made.loss(made.make_model().to(torch.bfloat16), (batch,)).dtype == torch.bfloat16


def test_the_contract_is_shown_where_it_is_not_met(base_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"loss = function\(model, batch\)"):
        load(base_dir, "mine:Plain")
    made = load(base_dir, "mine:Plain", "mine:pairs", loss="mine:loss")
    unfit = dataclasses.replace(made, compute_loss=lambda model, batch: model(batch[0]))
    text = r"expected a scalar loss, got a tensor of shape \(4, 1\)(.|\n)*make_batch"
    with pytest.raises(UsageError, match=text):
        unfit.loss(unfit.make_model(), unfit.batch(0, 0, 0))
    taken_otherwise = load(base_dir, "mine:Plain", "mine:pairs", loss="mine:output_loss")
    text = r"output_loss\(model: Plain, batch: tuple\) failed with TypeError(.|\n)*function\(model, batch\)"
    with pytest.raises(UsageError, match=text):
        taken_otherwise.loss(made.make_model(), made.batch(0, 0, 0))


TINY = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 32}


class TestTransformers:
    """`hf:` models; transformers is imported once."""

    @pytest.fixture(autouse=True)
    def _transformers(self) -> None:
        pytest.importorskip("transformers")

    def test_a_bundled_shape_shrunk_by_options_trains(self, base_dir: Path) -> None:
        made = load(base_dir, "hf:gpt2", options=TINY, sequence_length=8)
        model = made.make_model()
        batch = made.batch(0, 0, 0)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert not model.is_gradient_checkpointing
        assert int(batch[0].max()) < 64
        loss = made.loss(model.eval(), batch)
        loss.backward()
        logits = model(batch[0]).logits[:, :-1]  # the labels are the tokens, shifted
        expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[0][:, 1:].flatten())
        torch.testing.assert_close(loss, expected)
        matrices = 12 * 16**2 + 16 * 64
        attention = 2 * 16 * 8
        assert made.flops_per_micro_batch == 6 * 4 * 8 * (matrices + attention)
        assert torch.equal(model.lm_head.weight, made.make_model().lm_head.weight), "the same at every call"

    def test_a_loss_in_chunks_is_the_models_without_its_logits(self, base_dir: Path) -> None:
        losses = []
        for chunks, calls in ((1, 1), (3, 0)):
            made = load(base_dir, "hf:gpt2", options=TINY, sequence_length=8, loss_chunks=chunks)
            model = made.make_model().eval()
            seen: list[object] = []
            model.register_forward_hook(lambda *given, seen=seen: seen.append(given))
            losses.append(made.loss(model, made.batch(0, 0, 0)))
            assert len(seen) == calls
        torch.testing.assert_close(*losses)

    def test_a_config_of_ones_own_in_a_folder(self, base_dir: Path) -> None:
        (base_dir / "net").mkdir()
        small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 50}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
        config = {"model_type": "llama", **small, **heads}
        (base_dir / "net" / "config.json").write_text(json.dumps(config))
        for name in ("hf:net", "hf:net/config.json"):
            made = load(base_dir, name, sequence_length=8, activation_checkpointing=True)
            model = made.make_model()
            assert model.is_gradient_checkpointing
            assert model.config.num_key_value_heads == 1
            made.loss(model, made.batch(0, 0, 0)).backward()

    def test_a_transformers_model_of_ones_own_is_taken_as_it_is(self, base_dir: Path) -> None:
        (base_dir / "theirs.py").write_text(
            "from transformers import GPT2Config, GPT2LMHeadModel\n"
            "def make(**sizes): return GPT2LMHeadModel(GPT2Config(**sizes))\n"
        )
        made = load(base_dir, "theirs:make", options=TINY | {"vocab_size": 256}, sequence_length=8)
        assert made.loss(made.make_model(), made.batch(0, 0, 0)).ndim == 0

    @pytest.mark.parametrize("written", [{}, {"layer_types": ["sliding_attention", "full_attention"]}])
    @pytest.mark.parametrize("layers", [1, 2, 3])
    def test_what_follows_from_the_number_of_layers_follows_from_the_option(
        self, base_dir: Path, written: dict[str, object], layers: int
    ) -> None:
        sizes = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8, "vocab_size": 256}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
        window = {"use_sliding_window": True, "sliding_window": 4}
        config = {"model_type": "qwen3", "num_hidden_layers": 2, **sizes, **heads, **window, **written}
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
            ("hf:gpt2", {"preset": "nano"}, "preset applies to the built-in models"),
            ("hf:Llama-3-8B", {"options": {"num_attention_heads": 0}}, "has no such form"),
        ],
    )
    def test_what_cannot_be_built_is_refused(
        self, base_dir: Path, model: str, keys: dict[str, object], message: str
    ) -> None:
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
