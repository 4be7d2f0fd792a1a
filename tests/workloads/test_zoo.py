"""The zoo: its table and its sweep agree, and each architecture trains in one process."""

import json
from pathlib import Path

import pytest
import torch

from tools import zoo_table
from zbench.errors import UsageError
from zbench.spec.load import load_sweep
from zbench.workloads import zoo
from zbench.workloads.zoo import Entry, table

SWEEP = Path(__file__).parents[2] / "sweeps" / "zoo.yaml"
SAMPLE = ("llama", "t5")
FAMILIES = ("bert", "mixtral", "vit", "wav2vec2", "clip", "nested_wrapped")


def check_that_it_trains(entry: Entry) -> None:
    """The loss is a finite scalar, and some weight has a gradient other than zero."""
    torch.manual_seed(0)
    model = zoo.build(entry.name).train()
    batch = model.make_batch(torch.Generator().manual_seed(0), 2, 16)
    loss = model(*batch)
    loss.backward()
    assert loss.ndim == 0
    assert torch.isfinite(loss)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert any(bool(gradient.any()) for gradient in gradients)
    assert sum(p.numel() for p in model.parameters()) < 50_000


def needs(entry: Entry) -> None:
    pytest.importorskip("expecttest" if ":" in entry.model else "transformers")


def test_the_sweep_names_every_architecture_of_the_table() -> None:
    axes = load_sweep(SWEEP, environ={}).axes
    assert axes["options.architecture"] == list(table())


@pytest.mark.parametrize(
    "name", [*SAMPLE, *(pytest.param(name, marks=pytest.mark.check) for name in FAMILIES)]
)
def test_an_architecture_trains(name: str) -> None:
    needs(table()[name])
    check_that_it_trains(table()[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in table() if name not in SAMPLE + FAMILIES])
def test_every_architecture_trains(name: str) -> None:
    needs(table()[name])
    check_that_it_trains(table()[name])


def test_an_unknown_architecture_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="did you mean 'llama'"):
        zoo.build("lama")


def test_the_page_of_the_documentation_shows_what_was_run() -> None:
    summary = json.loads(zoo_table.SUMMARY.read_text())
    written = zoo_table.PAGE.read_text()
    assert written == zoo_table.page(summary["trials"]), "run `python -m tools.zoo_table`"
    assert all(f"| {name} |" in written for name in table())
