"""Models and data, bit for bit the same for every engine and stage."""

from zbench.workloads.build import build_workload
from zbench.workloads.workload import Batch, Workload, seed_all, weighted

__all__ = ["Batch", "Workload", "build_workload", "seed_all", "weighted"]
