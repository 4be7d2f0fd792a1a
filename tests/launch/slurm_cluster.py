"""A private SLURM of two nodes on this machine, for tests: its own munge, ports and directory; never the
machine's own one.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

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
def running() -> Iterator[Cluster]:
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
