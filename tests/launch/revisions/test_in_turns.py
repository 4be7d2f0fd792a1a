"""A pair of real sweeps takes turns; versions that cannot are sampled one after the other."""

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engine.lattice import NO_CARD
from tests.nvml import Device, install
from zbench.launch import pair
from zbench.launch.pair import Sampler
from zbench.launch.revisions import Version, version_of

from .conftest import sweep_document

SWEEP = """
name: turns
workload: {model: "logging_model:Net", data: {synthetic: true}, sequence_length: 8, micro_batch_size: 2}
run: {world_size: 1, threads_per_rank: 1, warmup_steps: 1, steps: 16, yardstick: none}
verify: {mode: "off"}
axes: {zero_stage: [1]}
"""
MODEL = """
import json, os, pathlib, time
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.head = nn.Linear(16, 256)

    def forward(self, tokens, targets):
        begin = time.monotonic()
        time.sleep(0.06)
        loss = nn.functional.cross_entropy(self.head(self.embed(tokens)).flatten(0, 1), targets.flatten())
        with pathlib.Path(__file__).with_name("steps").open("a") as file:
            print(json.dumps([os.getpgrp(), begin, time.monotonic()]), file=file)
        return loss
"""


@pytest.mark.check
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("ranks", "device"),
    [
        (1, "cpu"),
        pytest.param(2, "cpu", marks=pytest.mark.check),
        pytest.param(1, "cuda", marks=[pytest.mark.cuda, NO_CARD]),
    ],
)
def test_two_real_samples_alternate_and_never_overlap(tmp_path: Path, ranks: int, device: str) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    (tmp_path / "logging_model.py").write_text(MODEL)
    messages: list[str] = []
    settings = [f"run.world_size={ranks}", f"run.device={device}"]
    here = version_of(sys.executable, messages.append)
    sampler = Sampler({"base": here, "head": here}, tmp_path / "sweep.yaml", settings, messages.append)
    (alone,) = sampler.take("base")
    sampler.remember("head", [alone])
    (tmp_path / "steps").unlink()
    both = sampler.take_in_turns("base", "head")
    assert both is not None, messages
    assert messages == ["the two samples of a pair are taken in turns, step by step"]
    for (record,) in both:
        assert record.timing is not None
        assert len(record.timing.step_seconds) == 12, "the first step of each turn is not timed"
        assert record.counts == alone.counts
    steps = sorted(map(json.loads, (tmp_path / "steps").read_text().splitlines()), key=lambda step: step[1])
    assert len({step[0] for step in steps}) == 2
    changes = [(one, two) for one, two in pairwise(steps) if one[0] != two[0]]
    assert all(one[2] <= two[1] for one, two in changes)
    assert len(changes) >= 6, "they alternate"


Program = Callable[[str], Version]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return a version whose every sweep prints a document, from the body of a shell script."""

    def made(name: str) -> Version:
        python = tmp_path / name
        document = tmp_path / "document.json"
        document.write_text(json.dumps(sweep_document(0.1)))
        python.write_text(f"#!/bin/sh\necho $ZBENCH_TURNS >> {tmp_path / 'variables'}\ncat {document}\n")
        python.chmod(0o755)
        return version_of(str(python), lambda _: None)

    return made


def test_versions_without_turns_are_sampled_one_after_the_other_and_the_user_is_told(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZBENCH_TURNS", "of an outer measurement")
    messages: list[str] = []
    old, older = program("old"), program("older")
    sampler = Sampler({"base": old, "head": older}, tmp_path / "sweep.yaml", [], messages.append)
    assert sampler.take_in_turns("base", "head") is None, "nothing is known of them yet"
    sampler.take("base")
    sampler.take("head")
    assert (tmp_path / "variables").read_text().split() == [], "a sample of its own takes no turns"
    assert sampler.take_in_turns("head", "base") is None
    sockets = (tmp_path / "variables").read_text().split()
    assert len(set(sockets)) == 2
    assert all(path.startswith("2:") for path in sockets), "the protocol's number"
    assert not any(os.path.exists(path[2:]) for path in sockets)
    assert sampler.take_in_turns("head", "base") is None
    assert len((tmp_path / "variables").read_text().split()) == 2, "it is tried once"
    assert len(messages) == 2
    assert messages[1].endswith(f"one after the other: no trial of {old.name} and {older.name} takes turns")


@pytest.mark.parametrize(
    ("available", "reserved", "says"),
    [
        (1000, None, "both need 5.72 MiB, and 1000 B are free"),
        (1 << 40, 2 << 30, "both need 5.72 MiB and 6 GiB of a GPU, and 1 TiB and 7 GiB of a GPU are free"),
    ],
)
def test_without_room_for_both_nothing_runs_at_once(
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    available: int,
    reserved: int | None,
    says: str,
) -> None:
    """reserved: of a GPU, by one rank; each process needs 1 GiB more for itself."""
    messages: list[str] = []
    version = program("python")
    sampler = Sampler({"base": version, "head": version}, tmp_path / "sweep.yaml", [], messages.append)
    for record in [*sampler.take("base"), *sampler.take("head")]:
        object.__setattr__(record.memory, "peak_reserved_bytes", reserved)
    install(monkeypatch, Device("GPU-a", free=7 << 30))
    monkeypatch.setattr(pair.psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
    assert sampler.take_in_turns("base", "head") is None
    assert messages[-1].endswith(says)
