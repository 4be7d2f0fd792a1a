"""What `--slurm KEY=VALUE` says: where and how jobs run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from zbench.errors import UsageError
from zbench.spec.run import RunSpec
from zbench.units import parse_count

_KNOWN = ("nodes", "cluster", "timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")
_NUMBERS = (*_KNOWN[2:], "array_parallelism", "signal_delay_s", "cpus_per_gpu", "gpus_per_task")
_YES, _NO = ("yes", "true", "1"), ("no", "false", "0")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """Where and how jobs run. nodes: of one trial; `parameters`: further ones of submitit, as
    slurm_partition.

    cluster: `slurm`, or submitit's `local` (processes on this machine) to try a set-up without SLURM.
    A job has its nodes for itself unless `exclusive=no` is given: a neighbour would slow it down.
    """

    nodes: int = 1
    cluster: str = "slurm"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"slurm_exclusive": True})

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Self:
        """Read `nodes=2 partition=gpu account=x` as options; UsageError for what is none."""
        found: dict[str, Any] = {"exclusive": "yes"}
        for text in texts:
            key, sign, value = text.partition("=")
            if not sign or not key.strip() or not value.strip():
                raise UsageError(
                    f"--slurm: expected KEY=VALUE such as nodes=2 or partition=gpu, got {text!r}"
                )
            found[key.strip().removeprefix("slurm_")] = value.strip()
        nodes, cluster = _whole(found.pop("nodes", "1"), "nodes"), str(found.pop("cluster", "slurm"))
        known = {key: _whole(text, key) if key in _NUMBERS else _switch(text) for key, text in found.items()}
        if known["exclusive"] is False:
            del known["exclusive"]
        return cls(nodes, cluster, {_name(key): value for key, value in known.items()})

    def nodes_for(self, run: RunSpec) -> dict[str, int]:
        """Return nodes and ranks per node of a trial; UsageError where they cannot be divided evenly.

        `run.hosts` says how many nodes; `nodes` counts for trials that leave it at 1.
        """
        if not isinstance(run.hosts, int):
            raise UsageError("run.hosts: under --slurm SLURM chooses the hosts; give their number")
        nodes = run.hosts if run.hosts > 1 else self.nodes
        each, rest = divmod(run.world_size, nodes)
        if rest or each == 0:
            raise UsageError(f"{run.world_size} ranks cannot be shared out evenly among {nodes} nodes")
        return {"nodes": nodes, "tasks_per_node": each}


def _name(key: str) -> str:
    """Return submitit's name of an option."""
    return key if key in _KNOWN else f"slurm_{key}"


def _switch(text: str) -> str | bool:
    if text.lower() in _YES:
        return True
    return False if text.lower() in _NO else text


def _whole(text: str, name: str) -> int:
    try:
        number = parse_count(text)
    except ValueError as error:
        raise UsageError(f"--slurm {name}: {error}") from None
    if number < 1:
        raise UsageError(f"--slurm {name}: expected at least 1, got {text}")
    return number
