"""Trials over several named hosts (`run.hosts`): torchrun on each, which meet by its static rendezvous.

The run directory must be on a file system that all hosts share, at the same path, as must be the Python
environment. On each host an agent, `python -m zbench.launch.hosts JOB.json NUMBER`, runs torchrun as the file
says; its exit status says how that ended. Where the agent's standard input ends, the other side is gone: it
kills everything that it started. Under torchrun, `python -m zbench.launch.hosts JOB.json` is a rank.
References and trials of one host run on this machine.
"""

import importlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from zbench.errors import UsageError, ZbenchError
from zbench.launch.events import ProgressTail, Watch
from zbench.launch.executor import Attempt, JobFactory, RepeatTask, TaskFiles, collected, patience
from zbench.launch.outcome import outcome_of
from zbench.launch.reaper import become_subreaper, end_children
from zbench.record.record import Failure
from zbench.units import format_seconds
from zbench.worker.job import RankJob, call, first_failure

_IMPORT_SECONDS = 60.0
"""Added to a trial's deadline: torchrun imports torch anew for each trial."""

_HOST_GRACE_SECONDS = 4.0
_RANK_GRACE_SECONDS = 2.0
_MEETING_SECONDS = 300.0
_POLL_SECONDS = 0.2
_KEPT = ("PYTHONPATH", "OMP_NUM_THREADS", "ZBENCH_TEST_FAULT")
_WORDS_OF_AN_ERROR = 300
_TORCHRUN_FAILED = 76
"""Exit status of an agent whose torchrun failed; 0 where it did not, anything else where the host is lost."""

_LOST_STATUS = 75


class HostLink(AbstractContextManager["HostLink"]):
    """The agent of one host, from its start to its end. errors: the file that takes its standard error."""

    def __init__(self, name: str, template: str, errors: Path, job: Path, number: int) -> None:
        """template: `run.host_command`. job, number: the agent's arguments."""
        self.name = name
        self._errors = errors
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                command_on(name, template, str(job), str(number)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )

    def status(self) -> int | None:
        """Return the agent's exit status, None while it runs."""
        return self._process.poll()

    def problem(self) -> str | None:
        """Return why the host counts as lost, None while it is there or torchrun has ended well or badly."""
        status = self.status()
        if status in (None, 0, _TORCHRUN_FAILED):
            return None
        words = " ".join(self._errors.read_text(errors="replace").split())[-_WORDS_OF_AN_ERROR:]
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        reason = f"the connection to it ended {how}" + (f": {words}" if words else "")
        return f"host {self.name} was lost: {reason}; see run.hosts and run.host_command"

    def __exit__(self, *_: object) -> None:
        """End the connection, and return when it has ended; the agent then kills what it started."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def command_on(host: str, template: str, *arguments: str) -> list[str]:
    """Return the command line that starts an agent on a host.

    template: `run.host_command`. `{command}` is replaced by the command as one text for a shell, as ssh wants
    it; where it is missing the words of the command follow.
    """
    agent = [sys.executable, "-P", "-u", "-m", "zbench.launch.hosts", *arguments]
    words = [word.replace("{host}", host) for word in shlex.split(template)]
    if "{command}" in template:
        return [word.replace("{command}", shlex.join(agent)) for word in words]
    return [*words, *agent]


def split_name(entry: str) -> tuple[str, str]:
    """Return name and address of a host as `run.hosts` gives it: `name` or `name=address`."""
    name, _, address = entry.partition("=")
    return name.strip(), address.strip() or name.strip()


def run_on_hosts(jobs: JobFactory, task: RepeatTask, watch: Watch | None) -> Attempt:
    """Run a repeat once on the hosts that its trial names; see `executor.Executor`."""
    run = task.trial.run
    assert isinstance(run.hosts, list)
    if task.trial.workload.command is not None or task.trial.engine.engine_python is not None:
        raise UsageError(
            "run.hosts: workload.command and engine.engine_python start their ranks on this machine;"
            " leave run.hosts out"
        )
    log = jobs.log_name(task)
    files = TaskFiles.fresh(jobs.run_dir / log, jobs.run_dir / log)
    # a thread count is resolved on its own host
    job = replace(jobs, values=lambda trial: trial.model_dump(mode="json")).job(task, files)
    assert isinstance(job, RankJob)
    environment = {key: os.environ[key] for key in _KEPT if key in os.environ}
    order = {
        "target": jobs.target(task),
        "modules": jobs.targets.modules,
        "job": asdict(job),
        "hosts": len(run.hosts),
        "meet": split_name(run.hosts[0])[1],
        "directory": str(Path.cwd()),
        "environment": {"OMP_NUM_THREADS": "1", **environment},  # torchrun's own default, without its note
    }
    file = files.work / "job.json"
    file.write_text(json.dumps(order))
    with ExitStack() as stack:
        links = [
            stack.enter_context(
                HostLink(split_name(entry)[0], run.host_command, files.logs / f"host{n}.err", file, n)
            )
            for n, entry in enumerate(run.hosts)
        ]
        failure = _watched(task, links, files, watch, log)
    if failure is not None:
        return Attempt(outcome_of(failure), failure)
    return collected(task, files, Attempt("ok"), f"{log}/host0.log")


def _watched(
    task: RepeatTask, links: Sequence[HostLink], files: TaskFiles, watch: Watch | None, log: str
) -> Failure | None:
    """Wait until all hosts have ended; return why the trial failed, None where it did not."""
    tail = ProgressTail(files.progress)
    deadline = give_up = time.monotonic() + patience(task) + _IMPORT_SECONDS
    while not all(link.status() == 0 for link in links):
        now = time.monotonic()
        if watch is not None and (reason := tail.feed(watch)):
            return Failure("pruned", reason, f"{log}/host0.log")
        if any(link.status() for link in links):
            give_up = min(give_up, now + _HOST_GRACE_SECONDS)  # the others may know more of the cause
        if now > give_up:
            return _cause(task, links, files, log, timed_out=give_up == deadline)
        time.sleep(_POLL_SECONDS)
    if watch is not None:
        tail.feed(watch)
    return None


def _cause(
    task: RepeatTask, links: Sequence[HostLink], files: TaskFiles, log: str, *, timed_out: bool
) -> Failure:
    """Return why a trial failed: a host that was lost, what a rank said, or the deadline."""
    for number, link in enumerate(links):
        if (problem := link.problem()) is not None:
            return Failure("crashed", problem, f"{log}/host{number}.log")
    failure = first_failure(str(files.result), task.trial.run.world_size)
    if failure is not None:
        return replace(failure, log=f"{log}/host0.log")
    if timed_out:
        limit = format_seconds(task.trial.run.timeout)
        return Failure("timeout", f"not finished after {limit} (run.timeout)", f"{log}/host0.log")
    number, link = next((number, link) for number, link in enumerate(links) if link.status())
    return Failure("crashed", f"host {link.name}: torchrun failed", f"{log}/host{number}.log")


def run_agent(job: Path, number: int) -> int:
    """Run torchrun on this host, the one of this number; return the agent's exit status."""
    become_subreaper()
    for ending in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(ending, _end)
    threading.Thread(target=_end_with_input, daemon=True).start()
    code = _start(job, number).wait()
    end_children()
    return _TORCHRUN_FAILED if code else 0


def _end(*_: object) -> None:
    """End this process and everything that it started."""
    end_children()
    os._exit(_LOST_STATUS)


def _end_with_input() -> None:
    """End this process when standard input ends: the other side is gone."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def run_rank(path: str) -> int:
    """Run this process's rank of the job at `path`, under torchrun; return its exit status."""
    order = json.loads(Path(path).read_text())
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    place = {name.lower(): int(os.environ[name]) for name in names}
    job = RankJob(**{**order["job"], **place, "init_method": "env://"})
    return call_rank(order["target"], order["modules"], lambda: job, (job.result_path, job.rank))


def call_rank(
    target: str, modules: Sequence[str], job: Callable[[], object], error: tuple[str, int | str]
) -> int:
    """Import what a worker needs and call `target`, as `zbench.worker.job.call` does; return its exit status.

    After a failure it waits a while: whatever started this rank then ends the others, which may know more of
    the cause.
    """

    def ready() -> object:
        for module in modules:  # in this order: the memory counter must be there before torch
            importlib.import_module(module)
        return job()

    code = call(target, ready, error)
    if code:
        time.sleep(_RANK_GRACE_SECONDS)
    return code


def meeting_point(file: Path, host: str | None) -> str:
    """Return `host:port` where all meet: who gives a host takes a free port there, and tells by `file`.

    ZbenchError where nobody says so.
    """
    if host is not None:
        draft = file.with_suffix(".tmp")
        draft.write_text(f"{host}:{free_port('127.0.0.1' if host == '127.0.0.1' else '')}")
        draft.replace(file)
    deadline = time.monotonic() + _MEETING_SECONDS
    while time.monotonic() < deadline:
        os.listdir(file.parent)  # a network file system looks again
        if file.exists():
            return file.read_text()
        time.sleep(_POLL_SECONDS)
    raise ZbenchError(
        f"rank 0 has not written {file} within {_MEETING_SECONDS:.0f} s; is the results directory on a file"
        " system that all nodes share?"
    )


def free_port(address: str) -> int:
    """Return a TCP port of `address` (this host's name for itself; "": all) that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def way_to(host: str) -> tuple[str, str | None]:
    """Return this host's own address on its way to another, and the interface that has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        address: str = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return address, name
    return address, None


def _start(job: Path, number: int) -> subprocess.Popen[bytes]:
    order = json.loads(job.read_text())
    place = meeting_point(job.with_name("meeting-point"), None if number else order["meet"])
    address, interface = way_to(order["meet"])
    environment = {**os.environ, **order["environment"]}
    if interface is not None:
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
        environment.setdefault("NCCL_SOCKET_IFNAME", interface)
    hosts, ranks = order["hosts"], order["job"]["world_size"]
    words = [sys.executable, "-m", "torch.distributed.run", "--local-addr", address]
    words += ["--nnodes", str(hosts), "--nproc-per-node", str(ranks // hosts)]
    master, _, port = place.rpartition(
        ":"
    )  # static: torchrun's c10d rendezvous unpickles what its store holds
    words += ["--max-restarts", "0", "--rdzv-backend", "static", "--node-rank", str(number)]
    words += ["--master-addr", master, "--master-port", port]
    with job.with_name(f"host{number}.log").open("ab") as log:
        return subprocess.Popen(
            [*words, "-m", "zbench.launch.hosts", str(job)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=order["directory"],
            env=environment,
        )


if __name__ == "__main__":
    status = run_agent(Path(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else run_rank(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of torch's process groups can abort a process that unloads around them
