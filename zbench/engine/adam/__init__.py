"""One Adam contract and its backends: native (CPU), CUDA, and a slow reference in plain torch."""

from zbench.engine.adam.contract import NORM_CHUNK, AdamBackend, AdamTask, Hyper, Slot
from zbench.engine.adam.cuda import CudaAdam, cuda_unavailable_reason
from zbench.engine.adam.native import NativeAdam
from zbench.engine.adam.reference import ReferenceAdam
from zbench.engine.adam.sums import add_cast_, sum_in_rank_order

__all__ = [
    "NORM_CHUNK",
    "AdamBackend",
    "AdamTask",
    "CudaAdam",
    "Hyper",
    "NativeAdam",
    "ReferenceAdam",
    "Slot",
    "add_cast_",
    "cuda_unavailable_reason",
    "sum_in_rank_order",
]
