"""A model and cards that are typed without a sweep file: what is assumed, and the answer to a person."""

import re
from pathlib import Path
from typing import Any

import pytest

import zbench
from zbench.app.typed import nodes_of, typed
from zbench.errors import UsageError
from zbench.spec.cards import CARDS

TINY = (
    "workload.options={num_hidden_layers: 1, hidden_size: 64, intermediate_size: 64, num_attention_heads: 8,"
    " vocab_size: 256}"
)


def test_what_nobody_typed_is_the_models_own_and_has_a_reason() -> None:
    known = typed("hf:Llama-3-8B", ["world_size=64", "machine=H100"])
    sweep = known.sweep
    assert (sweep.workload.sequence_length, sweep.engine.dtype, sweep.run.nodes) == (4096, "bfloat16", 8)
    assert sweep.axes == {"zero_stage": [0, 1, 2, 3]}
    assert known.reasons["workload.sequence_length"] == "assumed; its maximum is 8,192"
    assert known.reasons["engine.dtype"] == "the model's own"
    assert known.reasons["run.nodes"] == "8 cards each, assumed"
    assert sweep.machine.network_bandwidth == CARDS["H100"].network  # type: ignore[union-attr]
    short = typed("hf:gpt2", [])
    assert (short.sweep.workload.sequence_length, short.sweep.run.world_size) == (1024, 8)
    assert short.reasons["workload.sequence_length"] == "its maximum"


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("dtype=float32", "engine.dtype", "float32"),
        ("sequence_length=128", "workload.sequence_length", 128),
        ("nodes=2", "run.nodes", 2),
        ("micro_batch_size=3", "workload.micro_batch_size", 3),
    ],
)
def test_what_is_typed_stays(setting: str, key: str, value: object) -> None:
    known = typed("hf:Llama-3-8B", ["world_size=64", setting])
    section, name = key.split(".")
    assert getattr(getattr(known.sweep, section), name) == value
    assert key not in known.reasons


def test_an_engine_gets_only_what_it_has() -> None:
    sweep = typed("hf:Llama-3-8B", ["engine=ddp"]).sweep
    assert (sweep.axes, sweep.engine.dtype) == ({"zero_stage": [0]}, "float32")
    assert typed("hf:Llama-3-8B", ["zero_stage=3"]).sweep.axes == {"zero_stage": [3]}


def test_nodes_have_at_most_eight_equal_cards() -> None:
    assert [nodes_of(ranks) for ranks in (1, 8, 12, 16, 64, 7, 11)] == [1, 1, 2, 2, 8, 1, 11]


@pytest.fixture
def document(zbench: Any) -> Any:
    """Return the answer to a tiny Llama on two nodes of cards, with a price."""
    flags = ("--machine", "8xH100", "--world-size", "16", "--tokens", "1B", "--price", "2.5")
    return zbench("estimate", "hf:Llama-3-8B", "--set", TINY, *flags, "--json").document


def test_the_typed_command_answers_memory_time_and_money(document: Any) -> None:
    assert document["device_memory"] == CARDS["H100"].memory, "the card's memory is the limit"
    assert [row["axes"]["zero_stage"] for row in document["trials"]] == [0, 1, 2, 3]
    assert document["simulated"]["nodes"] == "2"
    for row in document["trials"]:
        seconds, tokens = row["time"]["low_s"], 16 * 4096
        assert row["fits"]
        assert row["tokens_per_s"][1] == pytest.approx(tokens / seconds)
        assert row["mfu"][1] == pytest.approx(row["estimate"]["flops"] / seconds / 989e12)
        hours = row["training"]["device_hours"]
        assert hours[0] == pytest.approx(16 * seconds * 1e9 / tokens / 3600)
        assert row["training"]["cost"] == pytest.approx([2.5 * each for each in hours])
    assert [text for text in document["assumptions"].values() if len(text) > 80] == []


def test_a_card_that_is_too_small_fails_the_gate(zbench: Any) -> None:
    Path("sweep.yaml").write_text("workload: {sequence_length: 4096, micro_batch_size: 4096}\n")
    output = zbench("estimate", "sweep.yaml", "--machine", "T4")
    assert output.code == 1
    assert re.search(r"does not fit: .* too much", output.out)
    assert all(len(line) < 100 for line in output.err.splitlines()), "a short table, not one long line"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("70B", "did you mean 'hf:Llama-2-70b'"), ("hf:Llama-3.1-7B", "or 'hf:Llama-3.1-8B'")],
)
def test_a_near_model_is_suggested(refusal: Any, name: str, hint: str) -> None:
    assert hint in refusal("estimate", name)


def test_a_bundled_model_needs_no_prefix(zbench: Any) -> None:
    output = zbench("estimate", "Llama-3.1-8B", "--set", TINY, "--set", "zero_stage=3", "--json")
    assert output.document["simulated"]["model"].startswith("hf:Llama-3.1-8B with")


def test_a_price_needs_tokens(refusal: Any) -> None:
    assert "add --tokens" in refusal("estimate", "--machine", "H100", "--price", "2.5")


@pytest.mark.usefixtures("zbench")
def test_python_asks_for_a_machine_and_tokens() -> None:
    mapping = {"workload": {"options": {"layers": 1, "width": 32, "heads": 2}, "sequence_length": 16}}
    answer = zbench.estimate(mapping, machine="2xH100", tokens="1B", price=2.5, jobs=1)
    (row,) = answer.trials
    assert row.trial.run.world_size == 2
    assert row.fits
    assert row.training is not None
    assert row.training[0] == 10**9
    frame = answer.to_pandas()
    assert list(frame["cost_low"]) == [row.cost[0]]  # type: ignore[index]
    with pytest.raises(UsageError, match="tokens: expected a number"):
        zbench.estimate(mapping, machine="H100", tokens="5GB")
