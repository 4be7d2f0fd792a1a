"""The command line in this process, with fake workers."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cli.calling import FAKES_AT, Output, run, use_fake_workers


@pytest.fixture
def zbench(monkeypatch, capsys, tmp_path, shared_processes) -> Callable[..., Output]:
    """Return a function that runs a command in an empty directory."""
    monkeypatch.chdir(tmp_path)
    use_fake_workers(monkeypatch, shared_processes)
    monkeypatch.syspath_prepend(str(FAKES_AT))  # their model is looked for before a run
    for name in [name for name in os.environ if name.startswith("ZBENCH_")]:
        monkeypatch.delenv(name)
    return partial(run, capsys)


@pytest.fixture
def refusal(zbench) -> Callable[..., str]:
    """Return a function that runs a command which is to be refused, and returns its one message."""

    def refused(*words: object) -> str:
        code, _, message = zbench(*words)
        assert (code, message.count("error:"), "Traceback" in message) == (2, 1, False), message
        return message

    return refused


@pytest.fixture
def sweep_file(tmp_path) -> Path:
    """Return a sweep of two configurations, two repeats each; `workload.options` says what workers do."""
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: tried\n"
        "workload: {model: 'fake:model'}\n"
        "run: {world_size: 2, repeats: 2, timeout: 120s}\n"
        "axes: {zero_stage: [0, 1]}\n"
    )
    return file
