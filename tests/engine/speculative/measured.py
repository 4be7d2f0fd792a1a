"""Runs in the pool's ranks: a share found by measurement, whatever each rank measured."""

from unittest import mock

import torch.distributed as dist

from tests.engine.speculative.cases import same
from tests.engine.speculative.running import layers, loss
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec


def agree(group: dist.ProcessGroup, stage: int, schedule: str) -> tuple[list[float], list[float]]:
    """Assert that a run whose state moves in mid-training has the bits of one whose state stays; return the
    shares that this rank chose, and the share of its moments on the host after every step. Each rank measures
    other costs.
    """
    states, chosen, held = [], list[float](), list[float]()
    update = 1e-9 + dist.get_rank(group)
    costs = mock.patch("zbench.engine.assembly.settings.measure_offload_costs", return_value=(0.0, update))

    def choose(copy: float, update: float, backward: float) -> float:
        chosen.append(0.25 + update / 2)
        return chosen[-1]

    decide = mock.patch("zbench.engine.optimizer.offload_ratio.largest_hidden", choose)
    for ratio in (1.0, "auto"):
        spec = {
            "zero_stage": stage,
            "offload_optimizer": "cpu",
            "offload_schedule": schedule,
            "offload_ratio": ratio,
            "gradient_clipping": 0.1,
            "reduce_bucket_size": 4096,
            "param_persistence_threshold": 100,
        }
        model = layers()
        with costs, decide:
            engine = build_engine(model, EngineSpec.model_validate(spec), group)
            for step in range(5):
                engine.backward(loss(model, step))
                engine.step()
                moments = engine.memory_by_category()
                held.append(moments["host_moments"] / (moments["host_moments"] + moments.get("moments", 0)))
        states.append(engine.state_dict())
        engine.close()
    assert not [key for key in states[0] if not same(states[0][key], states[1][key])]
    return chosen, held[5:]
