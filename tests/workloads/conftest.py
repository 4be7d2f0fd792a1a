"""A user's module with models, datasets and losses, its folder, and the workload of a model of it."""

import sys
from pathlib import Path

import pytest

from zbench.spec.workload import WorkloadSpec
from zbench.workloads import Workload, build_workload

MODULE = """
import random

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

def pretrained(): return Regression().eval()

def frozen_part():
    model = Regression()
    model.kept = nn.BatchNorm1d(1).eval()
    return model

def lazy():
    model = Regression()
    model.line = nn.LazyLinear(1)
    return model

def output_loss(output, target): return (output - target).square().mean()

class Counts(Regression):
    def count_tokens(self, batch): return 7

class Read(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 1)
    def forward(self, place, input_ids): return self.embed(input_ids).mean()

class Reads(Read):
    def forward(self, place, input_ids, labels): return self.embed(input_ids).mean()

class Labelled(Dicts):
    def __getitem__(self, k):
        return {"place": k, "input_ids": X[k].long(), "labels": torch.tensor([-100, k, k])}

class Ids(Dicts):
    def __getitem__(self, k): return {"place": k, "input_ids": X[k].long()}

class Blocks(Regression):
    def __init__(self):
        super().__init__()
        self.line = nn.Sequential(nn.Linear(3, 1))

class Draws(Plain):
    def __init__(self):
        super().__init__()
        self.drawn = random.random()

def drawn(): return TensorDataset(torch.full((5, 3), random.random(), dtype=torch.float64))

def tokens(): return TensorDataset(X[:9].long())

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
