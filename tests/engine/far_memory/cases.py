"""What the ranks of a test run: training over far memory, many schedules in one process group."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.engine import models
from tests.engine.cases import CHANGES, train
from tests.engine.far_memory.copies import Copies
from tests.engine.far_memory.memory import FarCollectives, FarMemory
from tests.engine.plain import Trajectory
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.memory.kinds import DeviceMemory, Memories
from zbench.engine.transport import choose
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.spec.engine import EngineSpec


@dataclass(frozen=True)
class Case:
    """One run. seed: draws when copies complete. resume: the step before which a saved state is loaded, by
    another engine or (even seeds) by the same one: behind another state (2, 6, ...), or after all its weights
    were overwritten.
    staged: collectives go through the far memory, as gloo's do for tensors of a device.
    sockets: ranks do not read one another's memory. late: `change` is made behind a step's backwards.
    dawdling: how often threads are late. A model on a card (`models`) has the card's own memory instead.
    """

    spec: dict[str, Any]
    seed: int
    world_size: int = 2
    model: str = "mlp"
    steps: int = 3
    backwards: int = 1
    change: str = "nothing"
    disturb: str = ""
    resume: int = -1
    staged: bool = False
    sockets: bool = False
    late: bool = False
    dawdling: float = 0.05


@dataclass
class Result:
    """A rank's trajectory, what the engine did to copies under way, or how it failed."""

    trajectory: Trajectory
    faults: list[str] = field(default_factory=list)
    copies: int = 0


def run(group: dist.ProcessGroup, cases: Sequence[Case]) -> list[Result]:
    """Run every case, one after another; what was compiled for earlier ones is forgotten."""
    torch._dynamo.reset()
    return [_run(group, case) for case in cases]


def far(copies: Copies, staging: Copies | None) -> Instruments:
    """Return what puts an engine's offloaded state behind late copies, and its collectives too; with
    `staging`, these go through host memory.
    """

    def late(inner: Any) -> Any:
        if staging is not None and inner.world_size > 1:
            inner = HostStagedCollectives(inner, FarMemory(staging))
        return FarCollectives(inner, copies)

    return Instruments(
        wrap_collectives=late,
        memories=lambda device: Memories(DeviceMemory(device), FarMemory(copies)),
    )


def _run(group: dist.ProcessGroup, case: Case) -> Result:
    seeds = [4 * case.seed + 2 * k + dist.get_rank(group) for k in range(2)]
    copies, staging = (Copies(seed, dawdling=case.dawdling) for seed in seeds)
    through = staging if case.staged else None

    def build() -> Engine:
        spec = EngineSpec.model_validate(case.spec)
        probe = (lambda group, memory: None) if case.sockets else choose.probe_peers
        with mock.patch.object(choose, "probe_peers", probe):
            instruments = None if "@" in case.model else far(copies, through)
            return build_engine(models.make(case.model), spec, group, instruments=instruments)

    def resumed(step: int, engine: Engine) -> Engine:
        if step != case.resume:
            return engine
        state = engine.state_dict()
        if case.seed % 2:
            engine.close()
            engine = build()
            CHANGES[case.change](step, engine.model, engine.param_groups)  # before the load
        elif case.seed % 4 == 2:
            engine.load_state_dict({key: value + 1 if value.ndim else value for key, value in state.items()})
        else:
            _overwrite(engine)
        engine.load_state_dict(state)
        return engine

    how = {key: getattr(case, key) for key in ("steps", "backwards", "change", "disturb", "late")}
    try:
        trajectory = train(build(), case.model, dist.get_rank(group), resumed=resumed, **how)
    finally:
        faults = copies.close() + staging.close()
    return Result(trajectory, faults, copies.started + staging.started)


def _overwrite(engine: Engine) -> None:
    """Give every parameter other values, frozen ones included."""
    with engine.gathered(engine.model, write=True), torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.add_(1.0)
