"""Runs in the pool's ranks: a share found by measurement, whatever each rank measured."""

from unittest import mock

import torch.distributed as dist

from tests.engine.speculative.cases import same
from tests.engine.speculative.running import layers, loss
from zbench.engine import build_engine
from zbench.spec.engine import EngineSpec


def agree(group: dist.ProcessGroup, stage: int, schedule: str) -> list[float]:
    """Assert that a run whose state moves in mid-training has the bits of one whose state stays; return the
    shares before and after. Each rank measures other costs.
    """
    states, shares = [], []
    update = 1e-9 + dist.get_rank(group)
    costs = mock.patch("zbench.engine.assembly.settings.measure_offload_costs", return_value=(0.0, update))
    decide = mock.patch(
        "zbench.engine.optimizer.offload_ratio.largest_hidden",
        lambda copy, update, backward: 0.25 + update / 2,
    )
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
                shares.append(engine._policies.share.value)
        states.append(engine.state_dict())
        engine.close()
    assert not [key for key in states[0] if not same(states[0][key], states[1][key])]
    return shares[5:]
