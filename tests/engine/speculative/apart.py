"""Runs in the pool's ranks: each rank decides by itself which of its steps update under backward."""

import torch.distributed as dist

from tests.engine.speculative.cases import same
from tests.engine.speculative.planned import Planned
from tests.engine.speculative.running import layers, loss
from zbench.engine import build_engine
from zbench.engine.speculative import Speculative
from zbench.spec.engine import EngineSpec

PLANS = ([True] * 5, [False] * 5, [True, False, True, False, False], [False, True, True, False, True])


def apart(group: dist.ProcessGroup, stage: int, limit: float) -> bool:
    """Return whether runs have the same bits, whatever each rank plans."""
    states, rank = [], dist.get_rank(group)
    for shift in range(len(PLANS)):
        model = layers()
        spec = {
            "zero_stage": stage,
            "offload_optimizer": "cpu",
            "offload_schedule": "speculative",
            "gradient_clipping": limit,
            "reduce_bucket_size": 4096,
            "param_persistence_threshold": 100,
        }
        engine = build_engine(model, EngineSpec.model_validate(spec), group)
        assert isinstance(engine.schedule, Speculative)
        engine.schedule.worker.under_backward = Planned(PLANS[shift if rank == 0 else (2 * shift + 1) % 4])
        for step in range(len(PLANS[0])):
            engine.backward(loss(model, step + rank))
            engine.step()
        states.append(engine.state_dict())
        engine.close()
    return all(same(states[0][key], other[key]) for other in states[1:] for key in other)
