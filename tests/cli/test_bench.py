"""`zbench bench adam` as a command: its document, its files, and what it refuses."""

import json

import pytest
import torch


def test_a_tiny_run_writes_its_document_and_page(zbench, tmp_path) -> None:
    done = zbench(
        "bench", "adam", "--sizes", "1k", "--threads", "1", "--rounds", 3, "--json", "--out", "figures"
    )
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document == json.loads((tmp_path / "figures.json").read_text())
    assert {table["table"] for table in document["tables"]} == {"plain", "phase", "phase_bf16_moments"}
    assert document["machine"]["cores"] >= 1
    assert {"python", "torch", "zbench"} <= document["versions"].keys()
    assert "torch fused by the book" in (tmp_path / "figures.md").read_text()
    assert "phase, 1,000 parameters" in done.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_the_reason_is_given(zbench) -> None:
    done = zbench("bench", "adam", "--device", "cuda", "--sizes", "1k")
    assert done.code == 2
    assert "Cuda" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--sizes", "many"), "--sizes:"),
        (("--sizes", "0"), "at least 1"),
        (("--threads", "4096"), "--threads: this process may use"),
        (("--device", "tpu"), "--device: expected cpu or cuda"),
        (("--device", "cuda", "--threads", "2"), "--threads: a CUDA device has none"),
        (("--out", "nowhere/figures"), "--out: there is no folder nowhere"),
        (("--sizes", "1k", "--deepspeed-python", "/no/such/python"), "--deepspeed-python: cannot run"),
    ],
)
def test_mistakes_are_named_with_their_flag(zbench, flags, says) -> None:
    done = zbench("bench", "adam", *flags)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err
