"""The user's own model, named as module:callable."""

from pathlib import Path

import pytest
import torch

from zbench.errors import UsageError
from zbench.spec.workload import WorkloadSpec
from zbench.workloads import Workload, build_workload

MODELS = """
import torch
from torch import nn

class Predicts(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens, targets):
        return nn.functional.cross_entropy(self.head(self.embed(tokens)).flatten(0, 1), targets.flatten())

class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 1)

    def make_batch(self, generator, micro_batch_size, sequence_length):
        return (torch.randn(micro_batch_size, 3, generator=generator),)

    def forward(self, x):
        return self.line(x).square().mean()

class CountsItself(Regression):
    def count_flops(self, batch_size, length):
        return 6.0 * batch_size * length

class ListBatch(Regression):
    def make_batch(self, generator, micro_batch_size, sequence_length):
        return [torch.zeros(1, 3)]

def pretrained():
    return Regression().eval()

def frozen_part():
    model = Regression()
    model.kept = nn.BatchNorm1d(1).eval()
    return model

def lazy():
    model = Regression()
    model.line = nn.LazyLinear(1)
    return model

def number():
    return 3

constant = 3
"""


@pytest.fixture
def base_dir(tmp_path: Path) -> Path:
    (tmp_path / "own_models.py").write_text(MODELS)
    return tmp_path


@pytest.fixture(autouse=True)
def _fresh_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("")  # restores sys.path afterwards
    monkeypatch.delitem(__import__("sys").modules, "own_models", raising=False)


def load(base_dir: Path, model: str, **keys: object) -> Workload:
    spec = WorkloadSpec.model_validate({"model": model, "sequence_length": 4, **keys})
    return build_workload(spec, seed=0, world_size=1, base_dir=base_dir)


def test_a_model_trains_on_tokens(base_dir: Path) -> None:
    made = load(base_dir, "own_models:Predicts", options={"width": 16})
    model = made.make_model()
    assert model.get_parameter("embed.weight").shape == (256, 16)
    assert made.loss(model, made.batch(0, 0, 0)).ndim == 0
    assert made.flops_per_micro_batch == 3 * 2 * 2 * 4 * 16 * 256


def test_a_model_in_eval_mode_is_trained_and_a_part_that_is_kept_in_it_stays(base_dir: Path) -> None:
    assert all(module.training for module in load(base_dir, "own_models:pretrained").make_model().modules())
    modes = {
        name: m.training for name, m in load(base_dir, "own_models:frozen_part").make_model().named_modules()
    }
    assert modes == {"": True, "line": True, "kept": False}


def test_a_model_may_make_its_own_batches(base_dir: Path) -> None:
    made = load(base_dir, "own_models:Regression")
    (batch,) = made.batch(2, 0, 0)
    assert batch.shape == (2, 3)
    assert torch.equal(batch, made.batch(2, 0, 0)[0])
    assert not torch.equal(batch, made.batch(3, 0, 0)[0])


def test_floating_inputs_take_the_models_dtype(base_dir: Path) -> None:
    made = load(base_dir, "own_models:Regression")
    assert made.loss(made.make_model().to(torch.bfloat16), made.batch(0, 0, 0)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("no_such_module:Model", "cannot load 'no_such_module:Model'"),
        ("own_models:Missing", "cannot load 'own_models:Missing'"),
        ("own_models:constant", "is a int, not callable"),
        ("own_models:number", "returned a int"),
        ("own_models:lazy", r"parameters without a shape \(line\.weight\): call the model once on a batch"),
        ("own_models:", "names nothing"),
        ("own_models:ListBatch", "to return a tuple of tensors, got list"),
    ],
)
def test_what_is_no_model_is_refused_with_what_was_expected(base_dir: Path, model: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(base_dir, model).batch(0, 0, 0)


def test_unknown_options_are_refused(base_dir: Path) -> None:
    with pytest.raises(UsageError, match="unexpected keyword argument 'depth'"):
        load(base_dir, "own_models:Predicts", options={"depth": 3})


@pytest.mark.parametrize("key", ["preset", "activation_checkpointing"])
def test_keys_of_the_built_in_models_are_refused(base_dir: Path, key: str) -> None:
    value = {"preset": "nano", "activation_checkpointing": True}[key]
    with pytest.raises(UsageError, match=f"workload.{key} applies to the built-in models"):
        load(base_dir, "own_models:Predicts", **{key: value})


def test_a_model_may_count_its_own_operations(base_dir: Path) -> None:
    assert load(base_dir, "own_models:CountsItself", micro_batch_size=4).flops_per_micro_batch == 6.0 * 4 * 4
