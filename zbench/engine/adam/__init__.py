"""One Adam contract and its backends: native (CPU), CUDA, and a slow reference in plain torch."""

from zbench.engine.adam.contract import NORM_CHUNK, AdamBackend, AdamTask, Hyper, Slot
from zbench.engine.adam.cuda import CudaAdam, cuda_adam, cuda_unavailable_reason
from zbench.engine.adam.functional import adam_step_
from zbench.engine.adam.mixed import MixedAdam
from zbench.engine.adam.native import NativeAdam
from zbench.engine.adam.optimizer import CpuAdam
from zbench.engine.adam.reference import ReferenceAdam
from zbench.engine.adam.sums import add_cast_, sum_in_rank_order
from zbench.engine.adam.torch_fused import TorchFusedAdam

__all__ = [
    "NORM_CHUNK",
    "AdamBackend",
    "AdamTask",
    "CpuAdam",
    "CudaAdam",
    "Hyper",
    "MixedAdam",
    "NativeAdam",
    "ReferenceAdam",
    "Slot",
    "TorchFusedAdam",
    "adam_step_",
    "add_cast_",
    "cuda_adam",
    "cuda_unavailable_reason",
    "sum_in_rank_order",
]
