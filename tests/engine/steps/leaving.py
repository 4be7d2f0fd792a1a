"""A rank leaves while the others train: it raises outside the engine, is killed, or closes its engine.

Run as `python -m tests.engine.steps.leaving STORE RANK WORLD WAY HOW`; each rank prints what it hears.
"""

import os
import sys
from unittest import mock

import torch
import torch.distributed as dist

from tests.engine.steps.agreeing import WIDTH, Routed, connected, heard
from zbench.engine import build_engine
from zbench.engine.transport import agreement
from zbench.spec.engine import EngineSpec

STEPS = 4


def train(group: dist.ProcessGroup, way: str, how: str, stage: int) -> str:
    """Return what a rank hears when the last rank leaves before its third forward."""
    with connected(group, way) as mine, mock.patch.object(agreement, "_SECONDS_TO_HEAR", 1.0):
        spec = EngineSpec.model_validate({"zero_stage": stage, "param_persistence_threshold": 0})
        model = Routed()
        engine = build_engine(model, spec, mine)

        def steps() -> None:
            for number in range(STEPS):
                if number == 2 and dist.get_rank(group) == dist.get_world_size(group) - 1:
                    leave()
                engine.backward(model(torch.ones(2, WIDTH)).sum())
                engine.step()

        def leave() -> None:
            if how == "is killed":
                os._exit(1)
            if how == "closes":
                engine.close()
            try:
                raise KeyError("in the data loader")
            finally:
                if how == "closes on its way out":
                    engine.close()

        if how == "raises" and dist.get_rank(group) == dist.get_world_size(group) - 1:
            steps()
        words = heard(steps)
        if not engine.closed:
            engine.close()
        return words


if __name__ == "__main__":
    store, rank, world, way, how = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(world))
    assert dist.group.WORLD is not None
    print(train(dist.group.WORLD, way, how, 3), flush=True)
    os._exit(0)
