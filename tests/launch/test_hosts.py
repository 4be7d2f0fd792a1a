"""Trials over several named hosts: agents, torchrun on each, and what is said of a host that is lost.

By default no torch is started; `make soak` runs trials on two network namespaces, which are two nodes.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.launch.nodes import Node, two_nodes, why_not
from zbench.errors import UsageError
from zbench.launch import hosts
from zbench.launch.executor import RepeatTask
from zbench.launch.executors import make_executor, require_room
from zbench.launch.hosts import HostLink, command_on, split_name, way_to
from zbench.launch.local import LocalExecutor
from zbench.launch.slurm_jobs import SlurmOptions
from zbench.spec.run import SSH, RunSpec
from zbench.spec.trial import TrialSpec

from .conftest import FAKES, make_trial
from .processes import until

HERE = "env PLACE={host}"
"""Reaches this machine under any name."""

UNABLE = why_not()
APART = 'hostname $0; exec "$@"'
NAMESPACE = (
    f"ip netns exec {{host}} unshare --uts --pid --fork --kill-child --mount-proc sh -c '{APART}' {{host}}"
)
REAL: dict[str, Any] = {
    "workload": {"model": "mlp", "options": {"hidden": 64}, "sequence_length": 32, "micro_batch_size": 4},
    "run": {"world_size": 2, "device": "cpu", "warmup_steps": 1, "steps": 3, "threads_per_rank": 1},
    "verify": {"mode": "off"},
    "engine": {"zero_stage": 3, "param_persistence_threshold": 0},
}


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    monkeypatch.setenv("PYTHONPATH", path)
    (tmp_path / "run").mkdir()
    made = LocalExecutor(tmp_path / "run", tmp_path, targets=FAKES)
    yield made
    made.close()


def spread(hosts: list[str], command: str, **options: Any) -> RepeatTask:
    """Return a repeat of fake workers over some hosts."""
    return RepeatTask(on(make_trial(**options), hosts, command))


def on(trial: TrialSpec, hosts: list[str], command: str) -> TrialSpec:
    run = trial.run.model_copy(update={"hosts": hosts, "host_command": command})
    return trial.model_copy(update={"run": run})


def left(task: RepeatTask) -> list[int]:
    """Return the processes that still work on a task."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if any(task.name in word for word in process.info["cmdline"] or ())
    ]


def test_the_command_goes_to_ssh_as_one_text_and_to_others_as_words() -> None:
    assert [split_name(entry) for entry in ("a", "a=10.0.0.1")] == [("a", "a"), ("a", "10.0.0.1")]
    ssh = command_on("a", SSH)
    assert ssh[:2] == ["ssh", "-T"]
    assert ssh[-2] == "a"
    assert ssh[-1] == f"{sys.executable} -P -u -m zbench.launch.hosts"
    assert command_on("a", "in {host}") == ["in", "a", sys.executable, *ssh[-1].split()[1:]]


def test_the_way_to_this_machine_is_its_loopback() -> None:
    assert way_to("127.0.0.1") == ("127.0.0.1", "lo")


def test_how_a_host_is_reached_is_no_part_of_a_trials_identity() -> None:
    plain = make_trial()
    two = on(plain, ["a", "b"], SSH)
    assert two.trial_id != plain.trial_id
    assert two.trial_id == on(plain, ["a", "b"], "other {host}").trial_id


@pytest.mark.parametrize(
    ("run", "slurm", "said"),
    [
        ({"world_size": 2, "hosts": 2}, None, "without --slurm the hosts have names"),
        ({"world_size": 3, "hosts": ["a", "b"]}, None, "3 ranks cannot be shared out evenly among 2 hosts"),
        ({"world_size": 3, "hosts": 2}, SlurmOptions(cluster="local"), "3 ranks cannot be shared out"),
        ({"world_size": 2, "hosts": ["a", "b"]}, SlurmOptions(cluster="local"), "give their number"),
    ],
)
def test_hosts_that_cannot_be_are_refused(run: dict[str, Any], slurm: SlurmOptions | None, said: str) -> None:
    if slurm is not None:
        pytest.importorskip("submitit")
    with pytest.raises(UsageError, match=said):
        require_room([RunSpec.model_validate(run)], slurm)


def test_under_slurm_the_number_of_hosts_is_that_of_nodes() -> None:
    run = RunSpec(world_size=4, hosts=2)
    assert SlurmOptions(nodes=4).nodes_for(run) == {"nodes": 2, "tasks_per_node": 2}


def test_a_host_that_cannot_be_reached_is_named_with_its_last_words(executor: LocalExecutor) -> None:
    attempt = executor.run(spread(["a", "b"], "sh -c 'echo no way to $0 >&2; exit 3' {host}"))
    assert attempt.outcome == "crashed"
    assert attempt.error is not None
    host = attempt.error.message.split()[1]  # either may be noticed first
    assert host in ("a", "b")
    assert f"host {host} was lost: the connection to it ended with status 3" in attempt.error.message
    assert f"no way to {host}" in attempt.error.message
    assert "run.host_command" in attempt.error.message


def test_an_agent_ends_when_the_connection_does(tmp_path: Path) -> None:
    job = tmp_path / "no job"
    job.write_text('{"meet": "nowhere"}')
    with HostLink("a", HERE, tmp_path / "errors", job, 1) as link:  # it waits for the first host
        agent = psutil.Process(link._process.pid)
        until(lambda: agent.num_threads() > 1, "the agent listens to its input")
        assert link.problem() is None
        link._process.stdin.close()  # type: ignore[union-attr]
        assert link._process.wait(120) == 75


def test_a_connection_that_is_killed_is_lost(tmp_path: Path) -> None:
    with HostLink("a", "sh -c 'exec sleep 600'", tmp_path / "errors", tmp_path / "no job", 0) as link:
        assert link.problem() is None
        link._process.kill()
        link._process.wait()
        assert "host a was lost: the connection to it ended by signal 9" in str(link.problem())


def test_commands_start_their_own_ranks(executor: LocalExecutor) -> None:
    task = spread(["a", "b"], HERE)
    workload = task.trial.workload.model_copy(update={"command": "python train.py"})
    with pytest.raises(UsageError, match=r"run\.hosts"):
        executor.run(RepeatTask(task.trial.model_copy(update={"workload": workload})))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("do", "outcome", "said"),
    [
        (None, "ok", None),
        ("crash", "crashed", "rank 0: RuntimeError: the model fell over"),
        ("allocate", "oom", "cannot allocate 7 GiB"),
        ("die", "crashed", "torchrun failed"),
    ],
)
def test_what_ranks_on_two_hosts_say_is_recorded(
    executor: LocalExecutor, do: str | None, outcome: str, said: str | None
) -> None:
    task = spread(["a=127.0.0.1", "b=127.0.0.1"], HERE, **({"do": do} if do else {}))
    attempt = executor.run(task)
    assert attempt.outcome == outcome, attempt
    if said is None:
        assert attempt.result is not None
    else:
        assert said in str(attempt.error)
    assert left(task) == []


@pytest.mark.soak
@pytest.mark.parametrize(("do", "kind"), [("step_on", "pruned"), ("hang", "timeout")])
def test_a_watcher_and_the_deadline_end_a_trial_on_all_hosts(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch, do: str, kind: str
) -> None:
    monkeypatch.setattr(hosts, "_IMPORT_SECONDS", 20.0)
    timeout = 1.0 if do == "hang" else 120.0
    task = spread(["a=127.0.0.1", "b=127.0.0.1"], HERE, do=do, peers="wait", timeout=timeout)
    attempt = executor.run(task, lambda line: "too slow" if line["step"] == 3 else None)
    assert attempt.error is not None
    assert (attempt.outcome, attempt.error.kind) == ("timeout", kind)
    assert left(task) == []


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    if UNABLE is not None:
        pytest.skip(UNABLE)
    with two_nodes() as found:
        yield found


def entries(nodes: tuple[Node, Node]) -> list[str]:
    return [f"{node.name}={node.address}" for node in nodes]


def kill_connection(task: RepeatTask, run_dir: Path, node: Node) -> threading.Thread:
    """Kill a node's connection once the trial has taken a step."""

    def wait() -> None:
        progress = run_dir / "logs" / task.name / "progress.jsonl"
        give_up = time.monotonic() + 120
        while not progress.exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        found = [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if (process.info["cmdline"] or [""])[0] == "unshare" and node.name in process.info["cmdline"]
        ]
        os.kill(found[0], signal.SIGKILL)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_real_trial_on_two_nodes_computes_its_reference(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    trial = on(TrialSpec.model_validate(REAL | {"verify": {"mode": "full"}}), entries(nodes), NAMESPACE)
    from zbench.launch.trial import TrialRunner

    before = [node.received() for node in nodes]
    with TrialRunner(make_executor(tmp_path / "run", tmp_path, None), tmp_path / "run") as runner:
        record = runner.run(trial)
    assert record.error is None, record.error
    assert (record.outcome, record.correctness.verdict) == ("ok", "identical")
    assert record.traffic is not None
    # a rank sends half of what it reduces, for 4 steps, and the other receives it by the cable
    sent = record.traffic["reduce_scatter"].bytes // 2 * 4
    assert all(node.received() - old > sent for node, old in zip(nodes, before, strict=True))


@pytest.mark.soak
def test_a_node_that_dies_in_mid_trial_is_named_and_nothing_hangs(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    run = REAL["run"] | {"steps": 1_000_000, "timeout": 60.0}
    trial = on(TrialSpec.model_validate(REAL | {"run": run}), entries(nodes), NAMESPACE)
    task = RepeatTask(trial)
    made = make_executor(tmp_path / "run", tmp_path, None)
    try:
        thread = kill_connection(task, tmp_path / "run", nodes[1])
        attempt = made.run(task, lambda _: None)
        thread.join()
    finally:
        made.close()
    assert attempt.outcome == "crashed"
    assert attempt.error is not None
    assert f"host {nodes[1].name} was lost: the connection to it ended" in attempt.error.message
    assert left(task) == []
