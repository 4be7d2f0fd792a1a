"""One Adam contract and its backends: native (CPU), CUDA, and a slow reference in plain torch."""

from zbench.engine.adam.contract import NORM_CHUNK, AdamBackend, AdamTask, Hyper, Slot
from zbench.engine.adam.cuda import CudaAdam, cuda_unavailable_reason
from zbench.engine.adam.executor import AdamExecutor, Completion, Gate, UpdateFailed, UpdateTimeout
from zbench.engine.adam.functional import adam_step_
from zbench.engine.adam.mixed import MixedAdam
from zbench.engine.adam.native import NativeAdam
from zbench.engine.adam.optimizer import CpuAdam
from zbench.engine.adam.reference import ReferenceAdam
from zbench.engine.adam.rollback import DoubleBuffer, Journal, Rollback, journal_bytes
from zbench.engine.adam.sums import add_cast_, sum_in_rank_order

__all__ = [
    "NORM_CHUNK",
    "AdamBackend",
    "AdamExecutor",
    "AdamTask",
    "Completion",
    "CpuAdam",
    "CudaAdam",
    "DoubleBuffer",
    "Gate",
    "Hyper",
    "Journal",
    "MixedAdam",
    "NativeAdam",
    "ReferenceAdam",
    "Rollback",
    "Slot",
    "UpdateFailed",
    "UpdateTimeout",
    "adam_step_",
    "add_cast_",
    "cuda_unavailable_reason",
    "journal_bytes",
    "sum_in_rank_order",
]
