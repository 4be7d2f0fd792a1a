"""Models and data, the same bits on every engine and stage."""

from zbench.workloads.build import build_workload
from zbench.workloads.chance import seed_all
from zbench.workloads.workload import Batch, Workload

__all__ = ["Batch", "Workload", "build_workload", "seed_all"]
