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
SAMPLE = ("llama", "bert", "t5", "mixtral", "vit", "wav2vec2", "clip", "nested_wrapped")


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


def test_there_are_architectures_of_every_family() -> None:
    names = [entry for entry in table().values() if entry.family != "fsdp_tests"]
    assert len(names) >= 60
    needed = {"decoder", "encoder", "encoder_decoder", "mixture_of_experts", "state_space", "vision", "audio"}
    assert needed <= {entry.family for entry in names}


@pytest.mark.parametrize("name", SAMPLE)
def test_an_architecture_trains(name: str) -> None:
    needs(table()[name])
    check_that_it_trains(table()[name])


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in table() if name not in SAMPLE])
def test_every_architecture_trains(name: str) -> None:
    needs(table()[name])
    check_that_it_trains(table()[name])


@pytest.mark.parametrize("name", ["llama", "mlp_stack"])
def test_checkpointing_recomputes_and_leaves_the_gradients(name: str) -> None:
    needs(table()[name])
    gradients, calls = [], []
    for keys in ({}, {"checkpointing": True}):
        torch.manual_seed(0)
        model = zoo.build(name, **keys).train()
        for key, weight in model.named_parameters():
            weight.requires_grad_("embed" not in key)
        linear = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
        count: list[int] = []
        linear.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        model(*model.make_batch(torch.Generator().manual_seed(0), 2, 16)).backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        calls.append(len(count))
    assert calls == [1, 2]
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("name", ["llama", "clip"])
def test_a_batch_holds_every_number_of_its_range(name: str) -> None:
    needs(table()[name])
    batch = zoo.build(name).make_batch(torch.Generator().manual_seed(0), 40, 40)
    for tensor, how in zip(batch, table()[name].batch.values(), strict=True):
        if "below" in how:
            least = how.get("plus", 0)
            assert tensor.unique().tolist() == [*range(least, least + how["below"])]


def test_an_unknown_architecture_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="did you mean 'llama'"):
        zoo.build("lama")


def test_the_page_of_the_documentation_shows_what_was_run() -> None:
    summary = json.loads(zoo_table.SUMMARY.read_text())
    written = zoo_table.PAGE.read_text()
    assert written == zoo_table.page(summary["trials"]), "run `python -m tools.zoo_table`"
    assert all(f"| {name} |" in written for name in table())


def test_a_trial_that_is_not_identical_is_shown_with_its_error() -> None:
    build = {"zbench": "08a5e25", "torch": "2", "transformers": "5"}
    trial = {"options.architecture": "llama", "zero_stage": 3, "dtype": "bfloat16", "build": build}
    bad = {**trial, "outcome": "crashed", "verdict": "unchecked", "error": "rank 0: no"}
    good = {**trial, "dtype": "float32", "outcome": "ok", "verdict": "identical", "error": None}
    other = {**good, "zero_stage": 0, "build": {**build, "torch": "3"}}
    page = zoo_table.page([good, bad, other])
    assert "**2 of 3 trials" in page
    assert "| a | 08a5e25 | 2 | 5 | 2 | 1 |\n| b | 08a5e25 | 3 | 5 | 1 | 1 |\n" in page
    assert "- llama (stage 3, bfloat16): rank 0: no\n" in page
    assert "| 3 | x |  |  | x |  |  | x |  |  |  |  | 2 of 3 | a, b |" in page
