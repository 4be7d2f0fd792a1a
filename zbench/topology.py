"""The processors of this host: the core and the NUMA node of each, and the node that a PCI device is near."""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zbench.errors import reason_of

_SYSTEM = Path("/sys")


@dataclass(frozen=True, slots=True)
class Host:
    """cores: the logical processors of each core that this process may use, in the machine's order. nodes:
    number of each NUMA node -> its processors. online: how many processors the machine has.

    Numbers of nodes may have gaps, and a node may have no processors (it is the memory of a GPU).
    """

    cores: tuple[tuple[int, ...], ...]
    nodes: Mapping[int, tuple[int, ...]]
    online: int

    @property
    def allowed(self) -> tuple[int, ...]:
        """The processors that this process may use."""
        return tuple(sorted(processor for core in self.cores for processor in core))

    def near(self, node: int | None) -> list[int]:
        """Return the allowed processors of a NUMA node; all that are allowed where it has none."""
        there = self.nodes.get(-1 if node is None else node, ())
        return [p for p in self.allowed if p in there] or list(self.allowed)

    def node_of(self, processor: int) -> int | None:
        """Return the NUMA node of a processor."""
        return next((number for number, there in self.nodes.items() if processor in there), None)

    def share_out(self, near: Sequence[int | None]) -> list[tuple[int, ...] | None]:
        """Return each rank's processors: equally many whole cores of its own; None where cores are short.

        near: the NUMA node of each rank's GPU; None for a rank without one. A rank gets cores of this node.
        Where those would be fewer than two processors for each rank there, and others are free, it gets
        others.
        """
        fair = len(self.cores) // len(near)
        if fair == 0:
            return [None] * len(near)
        pools: dict[int | None, list[tuple[int, ...]]] = {}
        for core in self.cores:
            pools.setdefault(self.node_of(core[0]), []).append(core)
        least = min(fair, -(-2 // min(map(len, self.cores))))
        ranks = Counter(near)
        shares = {node: len(pools.get(node, ())) // count for node, count in ranks.items()}
        at_home = {node for node, share in shares.items() if node is not None and share >= least}
        share = min([fair, *(shares[node] for node in at_home)])
        home_cores: list[list[tuple[int, ...]] | None] = [
            [pools[node].pop(0) for _ in range(share)] if node in at_home else None for node in near
        ]
        rest = sorted(core for pool in pools.values() for core in pool)
        rank_cores = [[rest.pop(0) for _ in range(share)] if cores is None else cores for cores in home_cores]
        return [tuple(processor for core in cores for processor in core) for cores in rank_cores]


def this_host() -> Host:
    """Return the processors that this process may use now."""
    allowed = sorted(os.sched_getaffinity(0))
    cores: dict[str, list[int]] = {}
    for processor in allowed:
        siblings = _SYSTEM / f"devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
        name = siblings.read_text().strip() if siblings.exists() else str(processor)
        cores.setdefault(name, []).append(processor)
    lists = {
        int(folder.name.removeprefix("node")): _parsed((folder / "cpulist").read_text())
        for folder in (_SYSTEM / "devices/system/node").glob("node[0-9]*")
    }
    nodes = dict(sorted(lists.items())) or {0: tuple(allowed)}
    return Host(tuple(map(tuple, cores.values())), nodes, os.cpu_count() or len(allowed))


def pinning_refusal(processors: Collection[int]) -> str | None:
    """Pin this process to processors; return why a machine, or its container, refuses that, if it does."""
    try:
        os.sched_setaffinity(0, processors)
    except OSError as error:
        return f"sched_setaffinity: {reason_of(error)}"
    return None


def node_of_device(address: str) -> int | None:
    """Return the NUMA node of a PCI device such as `0000:07:00.0`; None where the machine does not say."""
    domain, _, place = address.lower().partition(":")
    file = _SYSTEM / f"bus/pci/devices/{int(domain, 16):04x}:{place}/numa_node"
    number = int(file.read_text()) if file.exists() else -1
    return None if number < 0 else number


def _parsed(ranges: str) -> tuple[int, ...]:
    """Return the processors of a list such as `0-3,8`."""
    processors: list[int] = []
    for part in filter(None, ranges.strip().split(",")):
        first, _, last = part.partition("-")
        processors += range(int(first), int(last or first) + 1)
    return tuple(processors)
