"""Trials as jobs: by submitit's local executor, with fake workers. SLURM itself is not needed."""

import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.world import run
from zbench.errors import UsageError
from zbench.launch.cluster import slurm
from zbench.launch.cluster.slurm import SlurmExecutor
from zbench.launch.cluster.slurm_jobs import SlurmOptions
from zbench.launch.executor import Batch, ReferenceTask, RepeatTask
from zbench.launch.executors import make_executor, require_room
from zbench.spec.run import RunSpec
from zbench.spec.trial import TrialSpec

from .conftest import FAKES, changed, make_trial

pytest.importorskip("submitit")


@pytest.fixture(autouse=True)
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    monkeypatch.setenv("PYTHONPATH", path, prepend=os.pathsep)
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.05)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[SlurmExecutor]:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    made = SlurmExecutor(run_dir, tmp_path, SlurmOptions(cluster="local"), targets=FAKES)
    yield made
    made.close()


def test_a_jobs_reference_judges_a_repeat_in_another_job(executor: SlurmExecutor, tmp_path: Path) -> None:
    reference = tmp_path / "run" / "references" / "key.safetensors"
    assert run(executor, ReferenceTask(make_trial(), reference)).outcome == "ok"
    attempt = run(executor, RepeatTask(make_trial(), 0, reference))
    assert attempt.result is not None
    assert attempt.result["correctness"]["verdict"] == "identical"


def submitted(executor: SlurmExecutor, **options: Any) -> int:
    return executor.submit(Batch((RepeatTask(make_trial(world_size=1, **options)),)), lambda *_: None)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("workload", "command", "python train.py"), ("engine", "engine_python", "/opt/other/bin/python")],
)
def test_what_starts_its_own_processes_has_one_node(
    tmp_path: Path, section: str, key: str, value: str
) -> None:
    trial = spread(2)
    block = getattr(trial, section).model_copy(update={key: value})
    executor = SlurmExecutor(tmp_path, tmp_path, SlurmOptions(cluster="local"), targets=FAKES)
    with pytest.raises(UsageError, match=r"run\.nodes: workload\.command and engine\.engine_python"):
        executor.submit(Batch((RepeatTask(trial.model_copy(update={section: block})),)), lambda *_: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        ([], SlurmOptions()),
        (["exclusive=no"], SlurmOptions(parameters={})),
        (
            ["nodes=2", "partition=07a", "mem_gb=64", "requeue=TRUE"],
            SlurmOptions(
                2,
                "slurm",
                {"slurm_exclusive": True, "slurm_partition": "07a", "mem_gb": 64, "slurm_requeue": True},
            ),
        ),
    ],
)
def test_options_are_submitits_and_nodes_are_shared_on_request(
    texts: list[str], options: SlurmOptions
) -> None:
    assert SlurmOptions.parse(texts) == options


def spread(world_size: int) -> TrialSpec:
    return make_trial().model_copy(update={"run": RunSpec(world_size=world_size, nodes=2)})


def test_the_trials_own_number_of_nodes_counts_and_ranks_are_shared_out_evenly() -> None:
    assert SlurmOptions(nodes=4).nodes_for(spread(4)) == (2, 2)
    with pytest.raises(UsageError, match="3 ranks cannot be shared out evenly among 2 nodes"):
        require_room([spread(3)], Path(), SlurmOptions(cluster="local"))


def test_turns_are_refused_in_slurm() -> None:
    run = RunSpec(world_size=2, order="turns")
    with pytest.raises(UsageError, match=r"run\.order: turns: .*; leave run\.order out"):
        require_room([make_trial().model_copy(update={"run": run})], Path(), SlurmOptions(cluster="local"))


def test_this_machine_is_one_node() -> None:
    with pytest.raises(UsageError, match=r"run\.nodes: 2: .* --ray or --slurm"):
        require_room([spread(2)], Path(), None)


def test_an_option_that_submitit_does_not_know_is_refused_at_once(tmp_path: Path) -> None:
    options = SlurmOptions(cluster="local", parameters={"colour": "red"})
    with pytest.raises(UsageError, match=r"--slurm: .*colour"):
        SlurmExecutor(tmp_path, tmp_path, options)


def test_jobs_run_at_once_and_the_first_that_ends_is_returned(executor: SlurmExecutor) -> None:
    slow, quick = submitted(executor, sleep=600), submitted(executor)
    assert executor.vacancy(1).batches == math.inf
    handle, _, attempt = executor.next_ended()
    assert (handle, attempt.outcome) == (quick, "ok")
    assert not executor.withdraw(slow), "it runs already"
    assert executor.withdraw(submitted(executor)), "it was not sent yet"


@pytest.mark.parametrize("text", ["nodes", "=2", "nodes=0", "nodes=many"])
def test_options_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slurm"):
        SlurmOptions.parse([text])


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for missing in ("sbatch", "srun"):
        with pytest.raises(UsageError, match=f"no {missing} on this machine"):
            SlurmExecutor(tmp_path, tmp_path, SlurmOptions())
        (tmp_path / missing).symlink_to("/bin/true")


SRUN = """#!{python} -P
import subprocess, sys
words = sys.argv[1:]
while words[0].startswith("--"):
    words.pop(0)
step = subprocess.Popen(words, stdout=subprocess.PIPE)
for line in step.stdout:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
sys.exit(step.wait())
"""
"""Passes a step's output on by whole lines, as SLURM does."""


@pytest.fixture
def allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be within an allocation of two nodes, whose job steps run here."""
    commands = tmp_path / "commands"
    commands.mkdir()
    scripts = {"srun": SRUN.format(python=sys.executable), "scontrol": "#!/bin/sh\necho one\necho two\n"}
    for name, text in scripts.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "7")


def test_in_an_allocation_trials_are_job_steps_beside_one_another(allocation: None, tmp_path: Path) -> None:
    require_room([make_trial(), spread(2)], tmp_path, SlurmOptions())
    executor = make_executor(tmp_path, tmp_path, SlurmOptions(), targets=FAKES)
    tasks = [RepeatTask(make_trial(stage=stage, sleep=0.5)) for stage in range(3)]
    wide = make_trial(do="describe", rank="all")
    tasks.append(RepeatTask(changed(wide, nodes=2)))
    for task in tasks:
        executor.submit(Batch((task,)), lambda *_: None)
    ends = [executor.next_ended() for _ in tasks]
    executor.close()
    assert all(attempt.outcome == "ok" and attempt.result is not None for *_, attempt in ends)
    nodes = [attempt.placement.nodes for *_, attempt in ends if attempt.placement is not None]
    assert {name for names in nodes for name in names} == {"one (one)", "two (two)"}


@pytest.mark.check
def test_a_job_step_that_is_lost_costs_no_trial(allocation: None, tmp_path: Path) -> None:
    executor = make_executor(tmp_path, tmp_path, SlurmOptions(), targets=FAKES)
    killed: list[int] = []

    def kill(_: object, line: dict[str, int]) -> str | None:
        if killed:
            return "seen again"
        (place,) = executor._under_way  # type: ignore[attr-defined]
        killed.append(place._steps[0]._process.pid)
        os.kill(killed[0], signal.SIGKILL)
        return None

    attempt = run(executor, RepeatTask(make_trial(do="step_on", world_size=1)), kill)
    executor.close()
    assert attempt.error is not None
    assert attempt.error.message == "seen again"


@pytest.mark.parametrize(
    ("options", "run", "message"),
    [
        (SlurmOptions(nodes=2), {}, "settings of jobs do not apply"),
        (SlurmOptions(), {"nodes": 3, "world_size": 3}, "the allocation has 2 nodes"),
    ],
)
def test_what_an_allocation_cannot_run_is_refused(
    allocation: None, tmp_path: Path, options: SlurmOptions, run: dict[str, int], message: str
) -> None:
    trial = make_trial()
    trial = trial.model_copy(update={"run": trial.run.model_copy(update=run)})
    with pytest.raises(UsageError, match=message):
        require_room([trial], tmp_path, options)
