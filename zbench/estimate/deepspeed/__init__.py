"""DeepSpeed's states, buffers and gathered parameters by rules read from its code, on tensors without data.

DeepSpeed itself is not needed. Each rule names the file of DeepSpeed 0.19.8 that it follows; paths are below
`deepspeed/runtime/`. Between the rules the model's own forward and backward run, so that activations are
counted as for every engine.
"""

from typing import Any

from torch import nn

from zbench.estimate.deepspeed.engine import RuledEngine
from zbench.estimate.deepspeed.flat import Bf16Optimizer, Partitioned, Replicated
from zbench.estimate.deepspeed.gathering import Gathered
from zbench.estimate.deepspeed.keys import Keys
from zbench.estimate.ledger import AllocationLedger
from zbench.peers.deepspeed import configuration
from zbench.spec.engine import EngineSpec


def ruled_engine(
    model: nn.Module,
    spec: EngineSpec,
    _group: object = None,
    *,
    ledger: AllocationLedger,
    is_apart: bool,
    **_: Any,
) -> RuledEngine:
    """Return the engine of a spec, by rules. UsageError for a configuration that no rule is for."""
    keys = Keys.of(configuration(spec))
    kinds: list[type[RuledEngine]] = [Replicated, Partitioned, Partitioned, Gathered]
    kind = Bf16Optimizer if keys.is_bf16_optimizer else kinds[keys.stage]
    return kind(model, spec, keys, ledger, is_apart=is_apart)
