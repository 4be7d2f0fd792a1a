"""What a rank holds and sends in one step, for `test_footprint`; runs inside the pool's ranks."""

import torch
import torch.distributed as dist
from torch import nn

from zbench.engine import Instruments, build_engine
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import TrafficMeter
from zbench.spec.engine import EngineSpec

WIDTHS = (100, 50, 30)
SIZES = (100 * 50, 50, 50 * 30, 30)


def footprint(group: dist.ProcessGroup, spec: dict) -> tuple[dict, dict]:  # type: ignore[type-arg]
    """Return (bytes by category after two steps, collective -> (calls, bytes) of the second)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:]))
    meter = TrafficMeter(PhaseClock())
    instruments = Instruments(wrap_collectives=meter.count)
    engine = build_engine(model, EngineSpec.model_validate(spec), group, instruments=instruments)
    for _ in range(2):
        meter.take()
        engine.backward(model(torch.ones(4, WIDTHS[0], dtype=model[0].weight.dtype)).square().mean())
        engine.step()
    traffic = {kind: (seen.calls, seen.bytes) for kind, seen in meter.take().items()}
    memory = engine.memory_by_category()
    engine.close()
    return memory, traffic


def between_backwards(group: dist.ProcessGroup, spec: dict) -> list[dict]:  # type: ignore[type-arg]
    """Return bytes by category after each backward but the last of two steps."""
    model = nn.Sequential(nn.Linear(*WIDTHS[:2]), nn.Linear(*WIDTHS[1:]))
    engine = build_engine(model, EngineSpec.model_validate(spec), group)
    held = []
    for _ in range(2):
        for micro in range(3):
            last = {"last": micro == 2} if spec["accumulation_mode"] == "multi_backward" else {}
            engine.backward(model(torch.ones(4, WIDTHS[0])).square().mean(), **last)
            held += [] if micro == 2 else [engine.memory_by_category()]
        engine.step()
    engine.close()
    return held
