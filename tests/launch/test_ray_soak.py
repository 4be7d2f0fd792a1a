"""`--ray` on emulated nodes of one machine: real trials, nodes that are killed, a command that is killed."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from zbench.record.store import find_runs, load_records

from .processes import MARK, marked, until
from .test_ray import RayNodes, running_nodes

pytest.importorskip("ray", reason='needs Ray: pip install -e ".[test]"')
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1500)]
HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
FAKE = """
name: fake
workload: {{model: "fake_worker:model", options: {{sleep: {sleep}}}}}
run: {{world_size: 1, repeats: {repeats}, order: rounds}}
axes: {{zero_stage: [0, 1, 2, 3]}}
verify: {{mode: reference}}
"""


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayNodes]:
    monkeypatch.setenv(MARK, f"ray-{os.getpid()}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(ROOT)]))
    with running_nodes(3) as running:
        yield running


def start(nodes: RayNodes, home: Path, *words: object, real: bool = False) -> subprocess.Popen[bytes]:
    """Start a command whose trials run on the nodes."""
    program = ["-m", "zbench.cli.main"] if real else [str(HERE / "driver.py")]
    words = (*words, "--ray", nodes.address, "--json", "-o", home / "results")
    with (
        (home / "out").open("w") as out,
        (home / "err").open("w") as err,
    ):  # a pipe that nobody reads fills up
        return subprocess.Popen(
            [sys.executable, *program, *map(str, words)], stdout=out, stderr=err, cwd=home
        )


def ended(command: subprocess.Popen[bytes], home: Path) -> dict[str, Any]:
    """Wait for a command's good end and return its document."""
    assert command.wait(timeout=600) == 0, (home / "err").read_text()
    document: dict[str, Any] = json.loads((home / "out").read_text())
    return document


def at_work() -> list[psutil.Process]:
    """Return the trial servers of the nodes' workers, and the ranks that they forked."""
    servers = []
    for one in marked(os.environ[MARK]):
        with suppress(psutil.Error):  # it has just ended
            servers += [one] if "zbench.launch.process.server" in one.cmdline() else []
    return servers


def test_the_quickstart_over_two_of_three_nodes_is_identical(nodes: RayNodes, tmp_path: Path) -> None:
    words = ("sweep", "quickstart", "--set", "world_size=2", "--set", "run.nodes=2", "--repeats", 1)
    document = ended(start(nodes, tmp_path, *words, real=True), tmp_path)
    assert {trial["correctness"]["verdict"] for trial in document["trials"]} == {"identical"}
    assert all(len(trial["placement"]["nodes"]) == 2 for trial in document["trials"])


def test_nodes_and_commands_that_are_killed_cost_no_record(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(FAKE.format(sleep=4, repeats=10))
    command = start(nodes, tmp_path, "sweep", "sweep.yaml")
    kills = 0
    for tick in range(1, 100):
        time.sleep(10)
        if command.poll() is not None:
            break
        if tick % 2 == 0:
            nodes.add()
            nodes.kill(nodes.names()[0])
        if tick in (4, 9) and find_runs(tmp_path / "results"):
            command.send_signal(signal.SIGKILL)
            command.wait()
            until(lambda: not at_work(), "what the killed command had started ends", 60)
            kills += 1
            command = start(nodes, tmp_path, "sweep", "sweep.yaml", "--resume", "last")
    ended(command, tmp_path)
    assert kills == 2
    (run,) = find_runs(tmp_path / "results")
    records = load_records(run)
    assert len({(one.trial_id, one.repeat) for one in records}) == len(records) == 40
    assert {one.outcome for one in records} == {"ok"}
    until(lambda: not at_work(), "nothing is left running", 30)


def test_a_search_has_several_points_under_way_and_none_twice(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(FAKE.format(sleep=2, repeats=1))
    document = ended(start(nodes, tmp_path, "tune", "sweep.yaml", "--method", "grid"), tmp_path)
    firsts = [trial for trial in document["trials"] if trial["repeat"] == 0]
    assert len({trial["trial_id"] for trial in firsts}) == len(firsts) == 4
    spans = sorted((one["placement"]["began"], one["placement"]["ended"]) for one in firsts)
    assert any(after[0] < before[1] for before, after in itertools.pairwise(spans))


def test_ctrl_c_gives_all_nodes_back(nodes: RayNodes, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(FAKE.format(sleep=600, repeats=1))
    command = start(nodes, tmp_path, "sweep", "sweep.yaml")
    until(lambda: len(at_work()) >= 6, "trials run", 120)
    command.send_signal(signal.SIGINT)
    began = time.monotonic()
    command.wait(timeout=60)
    assert command.returncode == 130
    until(lambda: not at_work(), "what it had started ends", 5 - (time.monotonic() - began))
