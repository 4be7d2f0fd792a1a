"""Trials as jobs: by submitit's local executor, with fake workers. SLURM itself is not needed."""

import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from zbench.errors import UsageError
from zbench.launch.cluster import slurm, slurm_jobs
from zbench.launch.cluster.slurm import SlurmExecutor
from zbench.launch.cluster.slurm_jobs import GONE, Cluster, SlurmOptions
from zbench.launch.executor import ReferenceTask, RepeatTask, repeat_name
from zbench.launch.executors import require_room
from zbench.launch.trial import TrialRunner
from zbench.spec.run import RunSpec
from zbench.spec.trial import TrialSpec

from .conftest import FAKES, make_trial

pytest.importorskip("submitit")


@pytest.fixture(autouse=True)
def fake_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.05)


@pytest.fixture
def runner(tmp_path: Path) -> TrialRunner:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    executor = SlurmExecutor(run_dir, tmp_path, SlurmOptions(cluster="local"), targets=FAKES)
    return TrialRunner(executor, run_dir)


def test_a_job_that_dies_without_a_word_crashed(runner: TrialRunner) -> None:
    trial = make_trial(world_size=1, sleep=600)
    runner.expect_references([trial])
    runner.expect([(trial, 0)])
    executor: Any = runner.executor
    executor._ahead[repeat_name(trial.trial_id, 0)].job.cancel(check=False)
    record = runner.run(trial)
    assert record.outcome == "crashed"
    assert record.error is not None
    assert "ended as" in record.error.message
    assert record.error.log is not None
    assert (runner.run_dir / record.error.log).is_dir(), "the job's output is kept"


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
        executor.run(RepeatTask(trial.model_copy(update={section: block})))
    assert list(tmp_path.iterdir()) == []


def test_one_job_is_reused_until_it_ends(tmp_path: Path) -> None:
    executor = SlurmExecutor(tmp_path, tmp_path, SlurmOptions(cluster="local", reuse=True), targets=FAKES)
    reference = tmp_path / "references" / "key.safetensors"
    assert executor.run(ReferenceTask(make_trial(), reference)).outcome == "ok"
    jobs = [executor._last.job.job_id] if executor._last else []
    for repeat in range(2):
        attempt = executor.run(RepeatTask(make_trial(), repeat, reference))
        assert attempt.result is not None
        assert attempt.result["correctness"]["verdict"] == "identical"
    pruned = executor.run(RepeatTask(make_trial(do="step_on", world_size=1), 2), lambda line: "too slow")
    assert pruned.error is not None
    assert (pruned.outcome, pruned.error.message) == ("timeout", "too slow")
    assert executor._last is not None
    assert [executor._last.job.job_id] == jobs
    executor._last.job.cancel(check=False)
    if (attempt := executor.run(RepeatTask(make_trial()))).was_killed:  # its end was not known yet
        attempt = executor.run(RepeatTask(make_trial()))
    assert attempt.outcome == "ok"
    assert [executor._last.job.job_id] != jobs
    executor.close()


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        ([], SlurmOptions()),
        (["exclusive=no"], SlurmOptions(parameters={})),
        (["exclusive=no", "reuse=true"], SlurmOptions(parameters={}, reuse=True)),
        (["exclusive=user"], SlurmOptions(parameters={"slurm_exclusive": "user"})),
        (
            ["nodes=2", "partition=gpu", "mem_gb=64"],
            SlurmOptions(2, "slurm", {"slurm_exclusive": True, "slurm_partition": "gpu", "mem_gb": 64}),
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


def test_states_are_those_of_squeue_and_a_job_that_it_forgot_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(slurm_jobs, "_ASK_SECONDS", 0.0)
    for name, does in (("sbatch", ""), ("srun", ""), ("squeue", f"cat {tmp_path}/states")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    cluster, jobs = Cluster(SlurmOptions(), "mine", tmp_path / "absent"), [Namespace(job_id=i) for i in "78"]
    for states, seen in (
        ("7|RUNNING\n8|PENDING\nslurm: a warning\n", ["RUNNING", "PENDING"]),
        ("7|COMPLETED\n", ["COMPLETED", GONE]),
        (None, ["COMPLETED", GONE]),  # squeue fails
    ):
        (tmp_path / "states").unlink(missing_ok=True)
        if states is not None:
            (tmp_path / "states").write_text(states)
        assert [cluster.state(job) for job in jobs] == seen


def test_what_is_expected_begins_at_once_and_is_run_as_it_ends(runner: TrialRunner) -> None:
    slow, quick = make_trial(world_size=1, sleep=600), make_trial(world_size=1)
    executor, names = runner.executor, [repeat_name(trial.trial_id, 0) for trial in (slow, quick)]
    assert executor.runs_ahead
    runner.expect_references([slow, quick])
    runner.expect([(slow, 0), (quick, 0)])
    assert executor.first(names) == names[1]
    assert all(map(executor.has_begun, names))
    assert executor.withdraw(names[:1]) == names[:1], "it runs already"
    assert runner.run(quick).outcome == "ok"
    assert [executor.has_begun(name) for name in names] == [True, False]
    runner.close()
    assert not executor.has_begun(names[0])


@pytest.mark.parametrize("text", ["nodes", "nodes=", "=2", "nodes=0", "nodes=many", "reuse=2"])
def test_options_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slurm"):
        SlurmOptions.parse([text])


def test_without_slurm_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for missing in ("sbatch", "srun"):
        with pytest.raises(UsageError, match=f"no {missing} on this machine"):
            SlurmExecutor(tmp_path, tmp_path, SlurmOptions())
        (tmp_path / missing).symlink_to("/bin/true")
