"""One Adam contract and its backends: native (CPU), CUDA, and a slow reference in plain torch."""

from zbench.engine.adam.contract import NORM_CHUNK, AdamBackend, AdamTask, Hyper, Slot
from zbench.engine.adam.native import NativeAdam
from zbench.engine.adam.reference import ReferenceAdam

__all__ = ["NORM_CHUNK", "AdamBackend", "AdamTask", "Hyper", "NativeAdam", "ReferenceAdam", "Slot"]
