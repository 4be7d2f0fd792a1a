"""One Adam contract and its backends: native (CPU), CUDA, and a slow reference in plain torch."""

from zbench.engine.adam.contract import NORM_CHUNK, AdamBackend, AdamTask, Hyper, Slot
from zbench.engine.adam.cuda import CudaAdam, cuda_unavailable_reason
from zbench.engine.adam.native import NativeAdam
from zbench.engine.adam.reference import ReferenceAdam

__all__ = [
    "NORM_CHUNK",
    "AdamBackend",
    "AdamTask",
    "CudaAdam",
    "Hyper",
    "NativeAdam",
    "ReferenceAdam",
    "Slot",
    "cuda_unavailable_reason",
]
