"""`--slurm` on a real SLURM of two nodes: arrays, requeues, preemption, a node that dies, a killed command.

Soak: SLURM is installed where it is missing (Debian, root), and started by itself in a private directory.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from zbench.record.store import find_runs, load_records

pytest.importorskip("submitit")
pytestmark = pytest.mark.soak
HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
FAKE = """
name: fake
workload: {{model: "fake_worker:model", options: {{gate: {gate}, sleep: 0.5, do: describe}}}}
run: {{world_size: 2, repeats: {repeats}, timeout: 120s}}
axes: {{zero_stage: {stages}}}
verify: {{mode: reference}}
"""
REAL = """
name: real
workload: {model: mlp, options: {layers: 2, hidden: 32}, data: {synthetic: true}, sequence_length: 16}
run: {world_size: 2, warmup_steps: 1, steps: 4, repeats: 1, threads_per_rank: 1, timeout: 120s}
axes: {zero_stage: [1, 3]}
verify: {mode: full}
"""


INSTALL = "apt-get update -q && apt-get install -q -y --no-install-recommends slurm-wlm munge"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
NODES = ("zba", "zbb")
CONFIGURATION = """
ClusterName=zbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket,cred_expire=5
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool-%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=6
KillWait=2
InactiveLimit=0
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000
PartitionName=all Nodes={nodes[0]},{nodes[1]} Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes={nodes[0]},{nodes[1]} MaxTime=INFINITE State=UP PriorityTier=10
"""


def why_not() -> str | None:
    """Return why no SLURM can run here, or None; install Debian's packages where it is missing."""
    if os.geteuid() != 0:
        return "SLURM's daemons start jobs as their users, so this needs root"
    if all(map(shutil.which, NEEDED)):
        return None
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["sh", "-c", INSTALL], capture_output=True, env=quiet, timeout=400, check=False)
    missing = [name for name in NEEDED if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}; run {INSTALL}" if missing else None


class Cluster:
    """The daemons of one SLURM. `environment`: what a command needs to use it."""

    def __init__(self, home: Path) -> None:
        """home: an empty directory for its files."""
        self.home = home
        self.environment = {"SLURM_CONF": str(home / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Write its files and start it; returns when both nodes are idle."""
        self._start_munge()
        (self.home / "state").mkdir()
        values = {"host": socket.gethostname(), "home": self.home, "ports": _free_ports(3), "nodes": NODES}
        (self.home / "slurm.conf").write_text(CONFIGURATION.format(**values))
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for node in NODES:
            self.start_node(node)
        idle = {f"{node} idle" for node in NODES}
        ask = ("sinfo", "-h", "-N", "-o", "%N %T")
        self.until(lambda: set(self.ask(*ask).splitlines()) == idle, "both nodes are idle")

    def start_node(self, node: str) -> None:
        """Start a node's daemon."""
        (self.home / f"spool-{node}").mkdir(exist_ok=True)
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """Kill a node's daemon and everything that it started, as a power cut does."""
        family = [psutil.Process(self._daemons[node].pid)]
        for step in [p for p in psutil.process_iter(["name"]) if p.info["name"] == "slurmstepd"]:
            with contextlib.suppress(psutil.Error):
                tasks = step.children(recursive=True)
                if node in [task.environ().get("SLURMD_NODENAME") for task in tasks]:
                    family += [step, *tasks]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._daemons.pop(node).wait()

    def ask(self, *words: str) -> str:
        """Return what one of SLURM's commands prints."""
        done = subprocess.run(
            words, env=os.environ | self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def jobs(self) -> dict[str, str]:
        """Return the state of every job that SLURM still knows, arrays by task."""
        lines = self.ask("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def until(self, condition: Callable[[], object], event: str, seconds: float = 60.0) -> None:
        """Wait for something; AssertionError with the daemons' last words if it does not happen."""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(AssertionError):
                if condition():
                    return
            assert time.monotonic() < deadline, f"not seen: {event}\n{self.last_words()}"
            time.sleep(0.2)

    def last_words(self) -> str:
        """Return the end of every log."""
        logs = sorted(self.home.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs)

    def close(self) -> None:
        """End every job and every daemon."""
        with contextlib.suppress(AssertionError, subprocess.SubprocessError):
            self.ask("scancel", "--user", "root")
            self.until(lambda: not self.ask("squeue", "-h"), "the queue is empty", 10.0)
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()

    def _start_munge(self) -> None:
        home = self.home
        (home / "munge.key").write_bytes(os.urandom(128))
        (home / "munge.key").chmod(0o400)
        files = ("--socket", "munge.socket"), ("--key-file", "munge.key"), ("--log-file", "munge.log")
        files += ("--pid-file", "munge.pid"), ("--seed-file", "munge.seed")
        words = [word for flag, name in files for word in (flag, str(home / name))]
        self._start("munged", "munged", "--foreground", "--force", *words)
        self.until((home / "munge.socket").exists, "munge listens", 10.0)

    def _start(self, name: str, *words: str) -> None:
        with (self.home / f"{name}-out.log").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                words, env=os.environ | self.environment, cwd=self.home, start_new_session=True,
                stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Run a cluster of two nodes."""
    home = Path(tempfile.mkdtemp(prefix="zbench-slurm-", dir="/tmp"))
    home.chmod(0o755)
    cluster = Cluster(home)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(home, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with running_cluster() as daemons:
        yield daemons


class Command:
    """A zbench command under way on the cluster, with fake workers that wait for `gate` unless `real`."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster = cluster
        self.home = home
        self.gate = home / "gate"
        self._running: subprocess.Popen[str] | None = None
        (home / "fake.py").write_text("def model(): ...\n")

    def file(self, text: str, **values: Any) -> Path:
        """Write a sweep file."""
        path = self.home / "sweep.yaml"
        path.write_text(text.format(gate=self.gate, **values) if values else text)
        return path

    def start(self, *words: object, real: bool = False, within: Sequence[str] = ()) -> None:
        """Start a command, by `within` if given."""
        program = ["-m", "zbench.cli.main"] if real else [str(HERE / "driver.py")]
        path = os.pathsep.join(filter(None, [str(HERE), str(ROOT), os.environ.get("PYTHONPATH")]))
        self._running = subprocess.Popen(
            [*within, sys.executable, *program, *map(str, words), "--json", "-o", str(self.home / "results")],
            env=os.environ | self.cluster.environment | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
        )

    def end(self, code: int = 0) -> dict[str, Any]:
        """Wait for its end and return its document."""
        assert self._running is not None
        stdout, errors = self._running.communicate(timeout=240)
        assert self._running.returncode == code, errors + self.cluster.last_words()
        document: dict[str, Any] = json.loads(stdout)
        assert "sacct" not in errors
        return document

    def end_well(self, count: int) -> dict[str, Any]:
        """Wait for its end; so many repeats are on disk, each once and verified."""
        document = self.end()
        (run,) = find_runs(self.home / "results")
        records = load_records(run)
        assert len(records) == len({(record.trial_id, record.repeat) for record in records}) == count
        assert {(one.outcome, one.correctness.verdict) for one in records} == {("ok", "identical")}
        return document

    def kill(self) -> None:
        """Kill it without a farewell; what it has started may still hold its pipes."""
        assert self._running is not None
        self._running.kill()
        self._running.wait()

    def running(self) -> dict[str, str]:
        """Return the node of each job that runs, by its number."""
        lines = self.cluster.ask("squeue", "-h", "-r", "-t", "running", "-o", "%i %N").splitlines()
        return dict(line.split() for line in lines)

    def until_running(self, count: int) -> dict[str, str]:
        """Wait until so many jobs run that have started their workers, and return their nodes."""

        def all_started() -> bool:
            jobs = self.running()
            begun = [path for job in jobs for path in self.home.rglob(f"logs/slurm/*/{job}-*")]
            return len(jobs) == count == len(begun)

        self.cluster.until(all_started, f"{count} jobs run", 90.0)
        return self.running()


@pytest.fixture
def command(cluster: Cluster, tmp_path: Path) -> Iterator[Command]:
    tmp_path.chmod(0o755)
    handle = Command(cluster, tmp_path)
    yield handle
    if handle._running is not None and handle._running.poll() is None:
        handle.kill()
    cluster.ask("scancel", "--user=root")
    cluster.until(lambda: not cluster.ask("squeue", "-h"), "no job is left")


def test_a_round_is_one_array_on_all_nodes_and_every_result_is_there_once(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=2, stages=[0, 1, 2, 3]), "--slurm", "timeout_min=5")
    nodes = command.until_running(2)
    assert set(nodes.values()) == set(NODES), "both nodes are used at once"
    assert len({job.partition("_")[0] for job in nodes}) == 1, "the jobs are tasks of one array"
    command.gate.touch()
    assert len(command.end_well(8)["trials"]) == 8


def test_a_real_trial_over_both_nodes_computes_its_reference(command: Command) -> None:
    command.start("sweep", command.file(REAL), "--slurm", "nodes=2", real=True)
    command.end_well(2)


def test_within_an_allocation_each_node_has_a_heat_of_its_own(command: Command) -> None:
    command.gate.touch()
    command.start(
        "sweep",
        command.file(FAKE.replace("timeout", "heat: 2, timeout"), repeats=1, stages=[0, 1, 2, 3]),
        "--slurm",
        "nodes=1",
        within=("salloc", "--quiet", "-N2", "--exclusive"),
    )
    document = command.end_well(4)
    assert {node for trial in document["trials"] for node in trial["placement"]["nodes"]} == {
        f"{name} ({name[:8]})" for name in NODES
    }


def test_a_search_runs_its_trials_as_jobs(command: Command) -> None:
    command.gate.touch()
    command.start(
        "tune", command.file(FAKE, repeats=1, stages=[0, 1]), "--slurm", "nodes=2", "--method", "grid"
    )
    document = command.end_well(6)  # each point, and its confirmation by two more repeats
    assert document["search"] is not None


def test_a_job_that_is_preempted_goes_on_after_the_urgent_one(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0, 1]), "--slurm", "partition=all")
    before = command.until_running(2)
    urgent = ("sbatch", "--partition=urgent", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 3")
    number = re.findall(r"\d+", command.cluster.ask(*urgent))[0]
    command.cluster.until(lambda: command.cluster.jobs().get(number) == "COMPLETED", "the urgent job ran", 90)
    starts = command.until_running(2)
    assert set(starts) == set(before), "the same jobs run again"
    command.gate.touch()
    command.end_well(2)


@pytest.mark.parametrize("requeues", [True, False])
def test_a_node_that_dies_costs_no_result(command: Command, requeues: bool) -> None:
    """Where SLURM does not requeue the job itself, it is submitted once more."""
    cluster = command.cluster
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0, 1]), "--slurm", "timeout_min=5")
    victim, node = next(iter(command.until_running(2).items()))
    cluster.ask("scontrol", "update", f"JobId={victim}", f"Requeue={int(requeues)}")
    cluster.kill_node(node)
    try:
        command.gate.touch()
        cluster.until(lambda: cluster.jobs()[victim] not in ("RUNNING", "COMPLETING"), "it is missed", 120)
    finally:
        cluster.start_node(node)
    command.end_well(2)


def test_a_command_that_is_killed_leaves_nothing_that_its_successor_does_not_end(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0, 1, 2, 3]), "--slurm", "timeout_min=5")
    jobs = command.until_running(2)
    command.kill()
    assert set(command.running()) == set(jobs)
    command.start("sweep", "--resume", "last", "--slurm", "timeout_min=5")
    command.cluster.until(lambda: not set(jobs) & set(command.running()), "the old jobs are cancelled")
    command.gate.touch()
    command.end_well(4)


def test_what_slurm_refuses_is_said_in_its_words(command: Command) -> None:
    command.start("sweep", command.file(FAKE, repeats=1, stages=[0]), "--slurm", "partition=nowhere")
    document = command.end(code=2)
    assert "invalid partition specified: nowhere" in document["error"]["message"]
    assert find_runs(command.home / "results") == []
