"""The code that runs on the nodes of a cluster: a check of the node, and the worker that runs trials."""

import ipaddress
import os
import shutil
import socket
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import psutil

from zbench.errors import UsageError
from zbench.job.failures import kind_of
from zbench.launch.executor import Attempt, Batch, OnLine, ReferenceTask, RepeatTask, Targets, Task
from zbench.launch.process.local import LocalExecutor, NodeRanks
from zbench.record.environment import fingerprint, machine_facts, machine_name, software_facts
from zbench.record.record import Failure
from zbench.record.store import LOGS, REFERENCES, TRACES
from zbench.spec.trial import TrialSpec, nodes_mistake

_CAUSES = ("reference", "usage", "unsupported", "storage", "pruned", "killed", "oom", "crashed", "timeout")
_SHIPPED = (
    "put it on a path that all nodes share, or let Ray carry it:"
    " `ray job submit --working-dir . -- zbench sweep FILE --ray`"
)


def versions() -> dict[str, str | None]:
    """Return the versions that must be equal on every node; Ray itself refuses another Ray or Python."""
    return {name: version for name, version in software_facts().items() if name in ("zbench", "torch")}


def look(base_dir: str, modules: Sequence[str], command: Mapping[str, str | None]) -> tuple[str, str, str]:
    """Check this node. Return its kind (equal if timings may be compared), its description, and its problem.

    modules: the user's own modules, which trials import. command: the versions of the command.
    """
    places = [base_dir, str(Path.cwd()), *sys.path]
    missing = [name for name in modules if PathFinder.find_spec(name.partition(".")[0], places) is None]
    problem = f"cannot import {', '.join(missing)}; {_SHIPPED}" if missing else ""
    if (here := versions()) != command:
        problem = f"has {here}, the command {dict(command)}; install the same"
    return fingerprint(machine_facts()), machine_name(), problem


def ranks_per_node(trial: TrialSpec, nodes: int) -> int:
    """Return the number of a trial's ranks on each node; UsageError where they cannot be on so many."""
    if problem := nodes_mistake(trial.engine, trial.workload, trial.run.world_size, nodes):
        raise UsageError(f"run.nodes: {problem}")
    return trial.run.world_size // nodes


def address_of_node(name: str, others: Sequence[str]) -> str:
    """Return the address at which the `others`, by their names, reach this node, which has this `name`.

    It is the one that packets to them leave from. A name may resolve to 127.0.1.1 on its own node (Debian),
    or not at all: then it is the first address of an interface that is up. Without a network: 127.0.0.1.
    """
    reached = (route_to(address) for other in others for address in _addresses(other))
    for candidate in (*filter(None, reached), *_addresses(name), *_interfaces()):
        if not ipaddress.ip_address(candidate).is_loopback:
            return candidate
    return "127.0.0.1"


def _addresses(name: str) -> list[str]:
    """Return what a name resolves to, addresses of version 4 first."""
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError:
        return []
    return [str(place[0]) for family, *_, place in sorted(infos, key=lambda one: one[0] != socket.AF_INET)]


def route_to(address: str) -> str | None:
    """Return this machine's address on the way to another; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return None


def _interfaces() -> list[str]:
    """Return the addresses of version 4 of the interfaces that are up."""
    up = {name for name, facts in psutil.net_if_stats().items() if facts.isup}
    each = ((name, one) for name, addresses in psutil.net_if_addrs().items() for one in addresses)
    return [one.address for name, one in each if name in up and one.family == socket.AF_INET]


def references_of(batch: Batch) -> dict[str, bytes]:
    """Return the references of the tasks of a batch, by name."""
    repeats = [task for task in batch.tasks if isinstance(task, RepeatTask)]
    paths = {path for task in repeats for path in (task.reference, task.base_row) if path is not None}
    return {path.stem: path.read_bytes() for path in paths}


class NodeWorker:
    """Runs tasks on its node, with a trial server that stays: an actor of Ray, or a process of a job."""

    def __init__(self, base_dir: str, targets: Targets, address: str = "", cpus: int = 0) -> None:
        """address: where other nodes reach this one. cpus: of the node, as Ray reports them. If the node has
        no `base_dir`, relative paths start from the job's own directory.
        """
        self._address = address
        for interface, addresses in psutil.net_if_addrs().items():
            if any(one.address == address for one in addresses):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
                os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        base = Path(base_dir) if Path(base_dir).is_dir() else Path.cwd()
        self._executor = LocalExecutor(None, base, targets=targets, cpus=cpus)
        self._lines: deque[dict[str, Any]] = deque()
        self._reason: str | None = None

    def meeting_point(self) -> str:
        """Return the rendezvous address of a trial whose first node is this one."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        with socket.create_server((self._address, 0), family=family) as probe:
            host = f"[{self._address}]" if ":" in self._address else self._address
            return f"tcp://{host}:{probe.getsockname()[1]}"

    def run(
        self,
        batch: Batch,
        node_rank: int,
        nodes: int,
        meeting: str | None,
        references: Mapping[str, bytes],
        on_line: OnLine | None = None,
    ) -> tuple[list[Attempt], dict[str, bytes]]:
        """Run a batch; return how each task ended, and its files by their paths in the run directory.

        node_rank: of this node among the `nodes` of the trial. meeting: the rendezvous address of several
        nodes. references: see `references_of`. on_line: for a caller that does not use `progress`.
        """
        self._reason = None
        self._executor.node_ranks = None if meeting is None else NodeRanks(node_rank, nodes, meeting)
        for name, data in references.items():
            (self._references() / name).write_bytes(data)
        placed = replace(batch, tasks=tuple(map(self._placed, batch.tasks)))
        self._executor.submit(placed, on_line or self._on_line)
        ends = dict[str, Attempt]()
        for _ in batch.tasks:
            _, task, attempt = self._executor.next_ended()
            ends[task.name] = attempt
        return [ends[task.name] for task in batch.tasks], self._files()

    def progress(self, reason: str | None) -> list[dict[str, Any]]:
        """Return the progress lines since the last call. reason: why the task is to be ended, if it is."""
        self._reason = reason
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def _on_line(self, task: Task, line: dict[str, Any]) -> str | None:
        self._lines.append(line)
        return self._reason

    def _references(self) -> Path:
        references = self._executor.run_dir / REFERENCES
        references.mkdir(parents=True, exist_ok=True)
        return references

    def _placed(self, task: Task) -> Task:
        """Return a task with its files on this node."""
        if isinstance(task, ReferenceTask):
            return replace(task, path=self._references() / task.path.name)
        if not isinstance(task, RepeatTask):
            return task
        reference, row = (path and self._references() / path.stem for path in (task.reference, task.base_row))
        return replace(task, reference=reference, base_row=row)

    def _files(self) -> dict[str, bytes]:
        """Return the files of a task in this node's run directory, and remove them there."""
        home = self._executor.run_dir
        logs = (path for path in (home / LOGS).rglob("*") if path.is_file())
        paths = [*logs, *(home / TRACES).glob("*"), *(home / REFERENCES).glob("*.safetensors")]
        files = {str(path.relative_to(home)): path.read_bytes() for path in paths}
        for folder in (LOGS, TRACES, REFERENCES):
            shutil.rmtree(home / folder, ignore_errors=True)
        return files


def unpack(files: Mapping[str, bytes], run_dir: Path) -> None:
    """Write a task's files from a node into the run directory."""
    for path, data in files.items():
        (run_dir / path).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / path).write_bytes(data)


def joined(parts: Mapping[int, Sequence[Attempt]]) -> list[Attempt]:
    """Return how each task of a batch ended, by what each of its nodes says."""
    return [_of_task(each) for each in zip(*(parts[number] for number in sorted(parts)), strict=True)]


def _of_task(parts: Sequence[Attempt]) -> Attempt:
    """Return how a task ended: the result of its first node, or the failure that caused the others."""
    failed = [(_weight(part.error), part) for part in parts if part.error is not None]
    if failed:
        return min(failed, key=lambda one: one[0])[1]
    return replace(parts[0], disturbance=max(parts, key=lambda part: part.severity).disturbance)


def _weight(error: Failure) -> tuple[bool, int]:
    """Return the sort key of failures, likely causes first: a rank that only lost its peer comes last."""
    return kind_of(RuntimeError(error.message)) == "peer_lost", _CAUSES.index(error.kind)
