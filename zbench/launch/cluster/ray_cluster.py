"""A Ray cluster: how it is reached, and which of its nodes trials may have.

Timings of unlike machines are not comparable, so all trials of a command run on nodes of one kind.
"""

import importlib
import math
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zbench.errors import UsageError
from zbench.launch.cluster.node import look, ranks_per_node, versions
from zbench.launch.cluster.places import Node, Nodes, Place
from zbench.launch.cluster.ray_place import RayPlace
from zbench.launch.executor import Targets
from zbench.spec.run import RANKS_ON_A_CPU
from zbench.spec.trial import TrialSpec

_CONNECT_SECONDS = 10.0
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4
"""What a client of gRPC begins with, and the kind of frame that every server answers (RFC 9113)."""

_LOOK_SECONDS = 60.0


class RayCluster(Nodes):
    """The nodes of a cluster that are alike, and which of them are there. tell: told of those left alone."""

    def __init__(self, address: str, tell: Callable[[str], None] = lambda text: None) -> None:
        """address: `HOST:PORT`, or `auto` for the cluster that this machine is a node of."""
        self._address = address
        self._pending: dict[Node, Any] = {}
        self._looks: dict[Node, tuple[str, str, str]] = {}
        self._kind: object = None
        self._tell = tell

    def require(self, trials: Sequence[TrialSpec], base_dir: Path) -> None:
        """Connect, and look at every node; UsageError where some trial cannot run here.

        base_dir: where relative paths of the trials begin.
        """
        self._arguments = str(base_dir.absolute()), sorted(set(map(_module, trials)) - {""}), versions()
        self._ray = connect(self._address)
        self._look(_LOOK_SECONDS)
        for node, (_, _, problem) in self._looks.items():
            if problem:
                raise UsageError(f"node {node.name}: {problem}")
        if self._pending and not self._looks:
            raise UsageError(
                f"no node of the cluster answered within {_LOOK_SECONDS:g} s"
                f" ({', '.join(node.name for node in self._pending)}): other work keeps them busy; try again"
            )
        kinds = Counter(map(self._kind_of, self._looks))
        self._kind = max(kinds, key=lambda kind: kinds[kind], default=None)
        for trial in trials:
            self._require_room(trial)
        if self.unlike():
            self._tell(f"left alone{self.unlike()}")

    def auto_ranks(self, nodes: int, device: str) -> int:
        """Return the ranks of `world_size: auto`: one for each GPU of the nodes that most are like."""
        there = [_node(about) for about in connect(self._address).nodes() if about["Alive"]]
        counts = Counter(node.gpus for node in there if node.cpus > 0)
        gpus = 0 if device == "cpu" else max(counts, key=lambda count: counts[count], default=0)
        return (gpus or RANKS_ON_A_CPU) * nodes

    def nodes(self) -> list[Node]:
        """Return the nodes of the chosen kind that are there now; one that has come since is looked at."""
        return [node for node in self._look(0.0) if self._kind_of(node) == self._kind]

    def place(self, nodes: Sequence[Node], worker: tuple[str, Targets], run_dir: Path) -> Place:
        """Return a new place; see `Nodes`."""
        return RayPlace(nodes, worker, run_dir)

    def tell_of_wait(self, nodes: Sequence[Node]) -> None:
        """Tell which other jobs there are, as far as Ray knows: a trial waits for these nodes."""
        own_job = self._ray.get_runtime_context().get_job_id()
        jobs = importlib.import_module("ray._private.state").jobs()
        others = [job["Entrypoint"] for job in jobs if not job["IsDead"] and job["JobID"] != own_job]
        where = ", ".join(node.name for node in nodes)
        who = ", ".join(others) or "none that Ray tells of"
        self._tell(f"waiting for {where}, which something else holds; other Ray jobs: {who}")

    def unlike(self) -> str:
        """Return the nodes that are left alone, in words."""
        others = [node for node in self._looks if self._kind_of(node) != self._kind]
        return "".join(f"; node {node.name} is another kind: {self._looks[node][1]}" for node in others)

    def _kind_of(self, node: Node) -> object:
        kind, _, problem = self._looks.get(node, ("", "", "not seen"))
        return None if problem else (kind, node.cpus, node.gpus)

    def _look(self, seconds: float) -> list[Node]:
        """Look at nodes that are new, for so long; return all that are there and have a CPU."""
        there = [_node(about) for about in self._ray.nodes() if about["Alive"]]
        there = [node for node in there if node.cpus > 0]
        on = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        for node in there:
            if node not in self._looks and node not in self._pending:
                options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": on(node.id, soft=False)}
                self._pending[node] = self._ray.remote(look).options(**options).remote(*self._arguments)
        looks = {reference: node for node, reference in self._pending.items()}
        for reference in (
            self._ray.wait([*looks], num_returns=len(looks), timeout=seconds)[0] if looks else ()
        ):
            node = looks[reference]
            del self._pending[node]
            try:
                self._looks[node] = self._ray.get(reference)
            except (self._ray.exceptions.TaskUnschedulableError, self._ray.exceptions.NodeDiedError):
                continue  # it has just gone
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
                self._looks[node] = "", "", f"zbench does not start there ({reason}); install it as here"
            if self._kind is not None and self._kind_of(node) != self._kind:
                _, description, problem = self._looks[node]
                self._tell(f"node {node.name} has come and is left alone: {problem or description}")
        return there

    def _require_room(self, trial: TrialSpec) -> None:
        run = trial.run
        alike = [node for node in self._looks if self._kind_of(node) == self._kind]
        each = ranks_per_node(trial, run.nodes)
        node = alike[0] if alike else Node("", "", 0, 0)
        threads = each * (1 if run.threads_per_rank == "auto" else run.threads_per_rank)
        by_gpu = run.device == "cuda" or (run.device == "auto" and node.gpus > 0)
        if run.nodes > len(alike) or (each > node.gpus if by_gpu else threads > node.cpus):
            raise UsageError(
                f"run.world_size: {run.world_size} ranks on {run.nodes} nodes: the cluster has no room:"
                f" {len(alike)} nodes of one kind with {node.cpus} CPUs and {node.gpus} GPUs each"
                f"{self.unlike()}; lower run.world_size, run.nodes or run.threads_per_rank, or add nodes"
            )


def connect(address: str) -> Any:
    """Return the module ray, connected; UsageError where it is not installed or no cluster answers."""
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise UsageError('--ray needs Ray; run: pip install "zbench[ray]"') from None
    if ray.is_initialized():
        return ray
    ended = signal.getsignal(signal.SIGTERM)
    try:
        # what Ray makes of the address: Ray itself waits for minutes where nobody answers
        head = importlib.import_module("ray._private.services").canonicalize_bootstrap_address(address)
        if head is not None:
            _require_answer(head)
        # its listener prints news of nodes to stdout, where the result belongs, until the process ends
        vars(importlib.import_module("ray._private.worker"))["print_to_stdstream"] = lambda *_, **__: None
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = "start zbench on a node of a Ray cluster, or give its head's HOST:PORT"
        remedy = "install the same here" if "ersion mismatch" in reason else remedy
        raise UsageError(f"--ray {address}: {reason}; {remedy}") from None
    finally:
        signal.signal(signal.SIGTERM, ended)  # Ray's own would end this process without a word
    return ray


def _require_answer(address: str) -> None:
    """Raise OSError unless a server of gRPC, as Ray's head is, answers at an address."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(_HELLO)
            if connection.recv(4)[3:] != bytes([_SETTINGS]):
                raise OSError("what answers there is not Ray's head")


def _node(about: dict[str, Any]) -> Node:
    has = about["Resources"]
    cpus, gpus = int(has.get("CPU", 0)), int(has.get("GPU", 0))
    return Node(about["NodeID"], about["NodeManagerAddress"], cpus, gpus, has.get("memory", math.inf))


def _module(trial: TrialSpec) -> str:
    """Return the user's own module that a trial's model is in; empty for a model that zbench knows."""
    model = trial.workload.model
    return model.partition(":")[0] if ":" in model and not model.startswith("hf:") else ""
