"""A Ray cluster on this machine, for tests: a head without CPUs, and nodes of one CPU each."""

import contextlib
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the nodes' address is this machine's loopback
}
os.environ.update(ENVIRONMENT)  # Ray reads it when it is imported
_NODE = {"object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1", "include_dashboard": False}


class RayNodes:
    """The nodes; `address` is what `--ray` takes."""

    def __init__(self, count: int) -> None:
        from ray._private import node
        from ray.cluster_utils import Cluster

        # Ray gives a node 30 s to start, which a busy machine does not always do
        vars(node)["time"] = SimpleNamespace(**vars(time) | {"monotonic": lambda: 0.0})
        self._cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **_NODE})
        self.address: str = self._cluster.address
        for _ in range(count):
            self.add()
        self._cluster.wait_for_nodes()

    def add(self) -> None:
        """Start another node."""
        self._cluster.add_node(wait=False, num_cpus=1, **_NODE)

    def names(self) -> list[str]:
        """Return the identities of all nodes but the head, the oldest first."""
        return [node.node_id for node in self._cluster.worker_nodes]

    def kill(self, name: str) -> None:
        """Kill a node and all that runs there, as a power cut does."""
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == name]
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End the cluster."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


@contextlib.contextmanager
def running(count: int) -> Iterator[RayNodes]:
    """Run a cluster of so many nodes."""
    nodes = RayNodes(count)
    try:
        yield nodes
    finally:
        nodes.close()
