"""One Adam contract and its backends: native (CPU), CUDA, and torch's fused Adam."""

from zbench.engine.adam.contract import NORM_CHUNK, AdamBackend, AdamTask, Hyper, Slot
from zbench.engine.adam.cuda import CudaAdam, MixedAdam, TorchFusedAdam, cuda_adam, cuda_unavailable_reason
from zbench.engine.adam.native import NativeAdam
from zbench.engine.adam.optimizer import CpuAdam, adam_step_

__all__ = [
    "NORM_CHUNK",
    "AdamBackend",
    "AdamTask",
    "CpuAdam",
    "CudaAdam",
    "Hyper",
    "MixedAdam",
    "NativeAdam",
    "Slot",
    "TorchFusedAdam",
    "adam_step_",
    "cuda_adam",
    "cuda_unavailable_reason",
]
