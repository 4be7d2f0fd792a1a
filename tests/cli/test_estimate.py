"""`zbench estimate` on the command line."""

import re
from pathlib import Path

import pytest

import zbench

SMALL = "workload: {options: {layers: 1, width: 32, heads: 2}, sequence_length: 16}\n"


@pytest.fixture
def estimate(zbench):
    """Return a function that estimates the small model with more in its sweep file."""

    def estimate(more, *flags):
        Path("sweep.yaml").write_text(SMALL + more)
        return zbench("estimate", "sweep.yaml", "--jobs", "1", *flags)

    return estimate


def test_an_estimate_says_which_configurations_fit_and_the_rest(estimate):
    flags = ("--world-size", "1024", "--device-memory", "100Ki", "--json")
    output = estimate("axes: {zero_stage: [0, 3]}\n", *flags)
    document = output.document
    assert re.findall(r"^\d of \d", output.err, re.MULTILINE) == ["1 of 2", "2 of 2"]
    assert "limits" not in output.err
    rows = {row["axes"]["zero_stage"]: row for row in document["trials"]}
    assert [row["world_size"] for row in rows.values()] == [1024, 1024]
    for row in rows.values():
        needed = row["estimate"]["peak_device_bytes"]
        assert row["spare_bytes"] == (100 << 10) - needed
        assert row["fits"] == (needed <= 100 << 10)
        assert sum(row["estimate"]["device"].values()) == needed
    assert rows[3]["estimate"]["peak_device_bytes"] < rows[0]["estimate"]["peak_device_bytes"]
    assert rows[3]["estimate"]["traffic"]["reduce_scatter"]["calls"] > 0
    assert rows[3]["sent_bytes"] == rows[3]["received_bytes"] > 0


def test_the_table_says_what_fits_by_how_much(estimate):
    output = estimate("axes: {zero_stage: [0]}\n", "--json")
    assert "1 of 1" not in output.err, "the table says it"
    (small,) = output.document["trials"]
    needed = small["estimate"]["peak_device_bytes"]
    for more, words in ((1024, "fits with 1 KiB to spare"), (-1024, "does not fit: 1 KiB too much")):
        assert words in estimate("axes: {zero_stage: [0]}\n", "--device-memory", f"{needed + more}B").out


@pytest.mark.check
def test_finds_the_largest_micro_batch_and_the_smallest_world(estimate):
    engine = "engine: {zero_stage: 1}\n"
    told = estimate(engine, "--device-memory", "1Mi", "--limits", "--json")
    assert re.search(
        r"1 of 1: .*: device .*, host 0 B, fits with .* to spare; now its limits$", told.err.strip()
    )
    (row,) = told.document["trials"]
    assert row["smallest_world_size"] == 1
    largest = row["largest_micro_batch"]
    axes = f"axes: {{micro_batch_size: [{largest}, {largest + 1}]}}\n"
    beside = estimate(engine + axes, "--json").document["trials"]
    peaks = [trial["estimate"]["peak_device_bytes"] for trial in beside]
    assert peaks[0] <= 1 << 20 < peaks[1]


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--device-memory", "80"], "80Gi"),
        (["--world-size", "0"], "for '--world-size'"),
        (["--limits"], "--device-memory"),
        (["--world-size", "3", "--set", "shard_group_size=2", "--set", "zero_stage=1"], "shard_group_size"),
        (["--machine", "H100", "--tokens", "5GB"], "--tokens: expected a number"),
        (["--machine", "H100", "--tokens", "0"], "--tokens: expected at least 1 token"),
        (["--machine", "H101"], "error: --machine H101: machine: "),
        (
            ["--world-size", "4", "--set", "world_size=8"],
            "error: --set world_size=8: world_size: --world-size 4 sets",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(refusal, arguments, remedy):
    assert remedy in refusal("estimate", *arguments)


UNFIT = """
import torch
from torch import nn

class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def make_batch(self, seed, batch_size, sequence_length):
        return (torch.ones(batch_size, 4),)

    def forward(self, x):
        y = self.layer(x)
        return y[y > 0].sum()

"""


def test_an_unsimulated_model_is_named_with_operator_and_remedy(zbench, tmp_path):
    (tmp_path / "unfit.py").write_text(UNFIT)
    file = tmp_path / "sweep.yaml"
    file.write_text("axes: {model: ['unfit:Picks'], zero_stage: [1]}\n")
    document = zbench("estimate", file, "--jobs", "1", "--json").document
    assert document["exit_code"] == 2
    (row,) = document["trials"]
    assert "aten.nonzero" in row["not_simulated"]
    assert "fixed shape" in row["not_simulated"]


def test_a_cards_launches_copies_and_collectives_are_counted(estimate):
    more = "run: {world_size: 4, nodes: 2}\nengine: {zero_stage: 3, offload_optimizer: cpu}\n"
    given = ("--set", "machine.host_memory_bandwidth=100e9", "--machine", "H100")
    (row,) = estimate(more, *given, "--json").document["trials"]
    assert "--set machine.network_bandwidth=" in row["time"]["not_known"]
    (row,) = estimate(more, *given, "--set", "machine.network_bandwidth=400e9", "--json").document["trials"]
    assert row["time"]["low_s"] > 0
    assert row["collectives"]["reduce_scatter"]["calls"] > 0
    assert row["gathers"]["calls"] >= row["gathers"]["exposed"] > 0
    assert min(row[key] for key in ("launches", "gradient_copies", "inter_node_bytes", "norm_bytes")) > 0
    assert row["host_waits"] > 0


def test_nothing_that_fits_is_a_failure(estimate):
    axes = "axes: {zero_stage: [0, 3]}\n"
    assert estimate(axes, "--device-memory", "1Ki", "--json").document["exit_code"] == 1
    offloaded = "engine: {zero_stage: 1, offload_optimizer: cpu}\nrun: {world_size: 8}\n"
    document = estimate(offloaded, "--host-memory", "1Ki", "--json").document
    (row,) = document["trials"]
    assert row["host_bytes_of_a_node"] == 8 * row["estimate"]["peak_host_bytes"]
    assert row["spare_host_bytes"] == 1024 - row["host_bytes_of_a_node"]
    assert estimate(offloaded, "--host-memory", "1Gi").code == 0


def test_a_gate_without_a_card_says_so_first(estimate):
    said = "CPU allocator, no card named; add --machine, such as --machine H100"
    gate = estimate("", "--device-memory", "80Gi")
    assert gate.code == 0
    assert gate.out.splitlines()[0] == said
    assert estimate("", "--device-memory", "80Gi", "--json").document["headline"] == said
    for more, flags in (
        ("", ("--machine", "H100")),
        ("run: {device: cuda}\n", ()),
        ("run: {device: cpu}\n", ()),
    ):
        assert "no card named" not in estimate(more, *flags).out.splitlines()[0]
    assert estimate("", "--machine", "H100").out.startswith("one rank on H100 with 79.1 GiB\n")


def test_tokens_are_a_count(estimate):
    (row,) = estimate("", "--machine", "H100", "--tokens", "300B", "--json").document["trials"]
    assert row["training"]["tokens"] == 300 * 10**9
    steps = 300 * 10**9 / (2 * 16)
    assert row["training"]["seconds"] == pytest.approx(
        [steps * row["time"][key] for key in ("low_s", "high_s")]
    )


@pytest.mark.check
def test_the_header_says_what_is_simulated_and_marks_defaults(estimate):
    out = estimate("engine: {engine: fsdp2, zero_stage: 3}\nrun: {world_size: 8}\n").out
    header = dict(re.findall(r"^  ([a-z -]+?)  +(\S.*)$", out.split("\n\n")[0], re.MULTILINE))
    assert (header["ranks"], header["sequence"], header["engine"]) == ("8", "16", "fsdp2")
    assert header["micro-batch"] == "2 (default)"
    card = estimate("axes: {dtype: [float32, bfloat16]}\n", "--machine", "RTX-4090", "--json").document
    assert card["simulated"]["device"] == "RTX-4090"
    assert card["simulated"]["dtype"] == "float32, bfloat16"
    (number,) = {row["estimate"]["parameters"] for row in card["trials"]}
    assert card["simulated"]["parameters"] == f"{number:,}"


@pytest.mark.check
def test_a_model_is_simulated_by_its_name(zbench):
    cut = ("--set", "workload.options={num_hidden_layers: 1, intermediate_size: 64}")
    model = zbench("estimate", "hf:Llama-3-8B", *cut, "--json").document["simulated"]["model"]
    assert model == "hf:Llama-3-8B with num_hidden_layers 1 (cut from 32), intermediate_size 64"


@pytest.mark.check
@pytest.mark.usefixtures("zbench")
def test_python_gets_the_rows_of_the_command():
    mapping = {"workload": {"options": {"layers": 1, "width": 32, "heads": 2}, "sequence_length": 16}}
    mapping |= {"axes": {"zero_stage": [0, 3]}}
    peaks = [row.estimate.peak_device_bytes for row in zbench.estimate(mapping, set={"world_size": 8}).trials]
    estimate = zbench.estimate(mapping, set={"world_size": 8}, device_memory=min(peaks), jobs=1)
    (fits,) = estimate.fitting
    assert fits.trial.engine.zero_stage == 3
    assert estimate.exit_code == 0
    assert list(estimate.to_pandas()["fits"]) == [False, True]
    assert "zero_stage" in repr(estimate)
    assert "<table>" in estimate._repr_html_()
