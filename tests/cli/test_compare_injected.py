"""A real `compare --paired` whose head has a bug in its engine: earlier micro-batches are forgotten."""

import sys
from pathlib import Path

import pytest

from tests.cli.calling import run
from zbench.launch.pair import Sampler
from zbench.launch.revisions import version_of

SWEEP = """
name: injected
workload: {model: mlp, options: {layers: 2, hidden: 32}, data: {synthetic: true}, sequence_length: 16}
run: {world_size: 2, threads_per_rank: 1, warmup_steps: 1, steps: 4, yardstick: none}
axes: {zero_stage: [2], gradient_accumulation_steps: [1, 2]}
"""
HONEST, BUG = "first = self._at_boundary or boundary.first\n", "first = True\n"
BREAKS = f'''
"""Imported by every interpreter that finds it: one module's source is changed as it is imported."""
import importlib.machinery, importlib.util, sys

class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        source = self.get_source(name)
        assert {HONEST!r} in source
        return compile(source.replace({HONEST!r}, {BUG!r}), self.path, "exec")

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "zbench.engine.gradients.gradients":
            return None
        sys.meta_path.remove(self)
        origin = importlib.util.find_spec(name).origin
        return importlib.util.spec_from_file_location(name, origin, loader=Loader(name, origin))

sys.meta_path.insert(0, Finder())
'''


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Return an interpreter whose zbench has the bug."""
    (tmp_path / "bug").mkdir()
    (tmp_path / "bug" / "sitecustomize.py").write_text(BREAKS)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path / "bug"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_sample_of_a_real_version_carries_its_verdicts(sweep: Path, broken: Path) -> None:
    """One micro-batch has none before it to forget."""
    version = version_of(str(broken), lambda _: None)
    records = Sampler({"head": version}, sweep, []).take("head")
    assert [record.outcome for record in records] == ["ok", "ok"], records
    verdicts = {r.axes["gradient_accumulation_steps"]: r.correctness.verdict for r in records}
    assert verdicts == {1: "identical", 2: "wrong"}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_bug_in_head_ends_with_4(monkeypatch, capsys, tmp_path: Path, sweep: Path, broken: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("compare", sys.executable, broken, "--paired", "--sweep", sweep, "--json")
    document = run(capsys, *words, "--blocks", "3", "--alpha", "0.2").document
    assert document["exit_code"] == 4
    assert [row["answer"] for row in document["trials"]][1] == "incorrect"
