"""What ranks do in the tests of `torch.distributed.checkpoint`."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from tests.engine.steps.training import batch, engine_of, model
from zbench.engine import Engine
from zbench.engine.checkpoint.distributed import DistributedState

Values = dict[str, Tensor]


def _engine(group: dist.ProcessGroup, spec: dict[str, Any]) -> Engine:
    net = model()
    net[2].bias.requires_grad_(False)
    net.register_buffer("seen", torch.zeros(3))
    return engine_of(group, net, spec)


def _step(engine: Engine, number: int) -> None:
    engine.backward(engine.model(batch(number)).square().mean())
    engine.step()


def saved(group: dist.ProcessGroup, path: str, spec: dict[str, Any], later: bool) -> Values:
    """Train two steps and save, asynchronously where `later`; return the state that was saved."""
    engine = _engine(group, spec)
    for number in range(2):
        _step(engine, number)
    engine.model.seen.fill_(3.5)  # type: ignore[operator, union-attr]
    expected = engine.state_dict()
    state = {"engine": DistributedState(engine, group)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if later:
            writing = dcp.async_save(state, checkpoint_id=path, process_group=group)
            _step(engine, 2)  # must not reach the file
            writing.result()
        else:
            dcp.save(state, checkpoint_id=path, process_group=group)
    engine.close()
    return expected


def loaded(group: dist.ProcessGroup, path: str, spec: dict[str, Any]) -> tuple[Values, int]:
    """Return the state after loading, and the most elements of one tensor that this rank keeps."""
    engine = _engine(group, spec)
    state = DistributedState(engine, group)
    parts = [v.to_local().numel() for v in state.state_dict().values() if hasattr(v, "to_local")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load({"engine": state}, checkpoint_id=path, process_group=group)
    values = engine.state_dict()
    _step(engine, 2)
    engine.close()
    return values, max(parts, default=0)
