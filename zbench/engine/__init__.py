"""ZeRO training engine: `build_engine(model, spec)`; knows nothing of benchmarks."""

from zbench.engine.assembly.build import Instruments, build_engine
from zbench.engine.checkpoint import load, save
from zbench.engine.engine import Engine
from zbench.engine.parameters.deferred import sharded_init
from zbench.engine.protocols import StepInfo

__all__ = ["Engine", "Instruments", "StepInfo", "build_engine", "load", "save", "sharded_init"]
