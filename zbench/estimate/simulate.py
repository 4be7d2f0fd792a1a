"""Simulates one rank of a trial: the real engine, workload and training loop, on fake tensors."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._op_schema import OpSchema
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from zbench.engine.assembly.build import Instruments
from zbench.engine.compiled.graph_pass import deliver, reduce_gradient
from zbench.engine.memory.kinds import DeviceMemory, Memories
from zbench.engine.parameters import deferred
from zbench.engine.protocols import Work
from zbench.engine.transport.agreement import Call
from zbench.engine.transport.base import GroupCollectives
from zbench.engine.transport.works import Done
from zbench.estimate.card import (
    CardHostMemory,
    ChunksOnDemand,
    HostMemory,
    card_transport,
    fsdp_offload,
    on_card,
    transport_of,
)
from zbench.estimate.copies import as_real_to_deepcopy
from zbench.estimate.counting import Repetition, WorkCounter
from zbench.estimate.deepspeed import ruled_engine
from zbench.estimate.launches import StepCounter, WatchedCollectives
from zbench.estimate.ledger import GRADIENTS, TEMPORARIES, AllocationLedger, tensors_of
from zbench.estimate.operators import operators_of_a_card
from zbench.estimate.reducer import in_python
from zbench.estimate.result import StepLaunches, StepWork
from zbench.measure.clock import PhaseClock
from zbench.measure.traffic import TrafficMeter
from zbench.peers.stepping import TorchEngine
from zbench.record.record import Traffic
from zbench.spec.trial import TrialSpec, accumulation
from zbench.worker.loop import MicroBatch, Trainer
from zbench.workloads import Batch, Workload, build_workload

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_LARGEST = 1 << 22  # elements
_WHOLE = frozenset({torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_ATTRIBUTE = "_zbench_value"
_WORKSPACE = 32 << 20
"""Bytes of `CUBLAS_WORKSPACE_CONFIG=:4096:8`, which ranks have; torch's own size from Hopper on."""
WARMUP = 1
MICRO_BATCHES = 3
"""Of a step, at most."""
_FACTORIES = frozenset({aten.arange, aten.full, aten.ones, aten.zeros, aten.scalar_tensor})


class SimulatedLedger(AllocationLedger):  # type: ignore[no-untyped-call]
    """A ledger for fake tensors: returns the values that the engine reads, and counts the work."""

    def __init__(self) -> None:
        super().__init__()
        self.work: WorkCounter | None = None
        self.counter: StepCounter | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Ignore operators that the compiler runs while it compiles; the compiled step is counted."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and DTensor not in types:  # more than half of all calls
            return args[0].fake_device
        return super().__torch_dispatch__(func, types, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is reduce_gradient:  # a compiled backward calls engine code: count it, too
            with self:
                return deliver(*args)
        out = self._answer(func, args, kwargs)
        if self.work is not None and self.counter is not None:
            self.work.note(func, args, kwargs, out)
            self.counter.note(func, args, kwargs, out)
        return out

    def _answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is aten._local_scalar_dense.default:
            value = value_of(args[0])
            if value is not None:
                with _disable_current_modes():
                    return value.item()
            if self.phase != "forward":
                return _zero(args[0].dtype)
        if func is aten.equal.default and self.phase != "forward":
            return True
        out = func(*args, **kwargs)
        if isinstance(out, FakeTensor):  # Module.to cannot swap a tensor that has weak references
            out.fake_mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        follow(func, args, kwargs, out)
        return out


def _zero(dtype: torch.dtype) -> Any:
    return False if dtype is torch.bool else 0.0 if dtype.is_floating_point else 0


class LedgerClock(PhaseClock):
    """A clock that sets the ledger's phase.

    gradients: returns the tensors that autograd itself keeps as gradients after a backward. after_backward:
    called after each backward. is_card: forward and backward, which have a thread each, take a workspace of
    cuBLAS at their first product, and keep it.
    """

    def __init__(self, ledger: AllocationLedger, *, is_card: bool) -> None:
        super().__init__()
        self._ledger = ledger
        self._workspaces: dict[str, Tensor | None] = dict.fromkeys(("forward", "backward") if is_card else ())
        self.gradients: Callable[[], Iterable[Tensor]] = tuple
        self.after_backward: Callable[[], None] = lambda: None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        with self._ledger.during(name):
            if name in self._workspaces and self._workspaces[name] is None:
                self._workspaces[name] = held = torch.empty(_WORKSPACE, dtype=torch.uint8)
                self._ledger.call([held], TEMPORARIES)
            yield
        if name == "backward":
            self._ledger.call(self.gradients(), GRADIENTS)
            self.after_backward()


@dataclass(slots=True)
class Step:
    """The ledger, one step of it (moments `begin` to `end`), and the peaks of building till `built`."""

    ledger: AllocationLedger
    built: int
    begin: int
    end: int
    build_bytes: dict[bool, int]
    engine_bytes: dict[str, int]
    traffic: dict[str, Traffic]
    flops: float | None
    work: StepWork
    counts: StepLaunches
    parameters: int


def simulate(trial: TrialSpec, base_dir: Path, *, rank: int = 0) -> Step:
    """Build one rank of `trial` on fake tensors, train WARMUP steps and one more; return the last step.

    With `run.device: cuda` the engine takes its way on a card. Of more than three micro-batches of a step,
    the first, one from between and the last are run; the one from between is counted for all of them. The
    warm-up of torch's engines has the last one only, which makes all that they keep.
    """
    run, backwards = trial.run, accumulation(trial.engine, trial.workload).backwards
    trial = _shortened(trial)
    if trial.engine.compile != "off":
        torch._dynamo.reset()  # Dynamo stops compiling after a few models of one class
    workload = build_workload(trial.workload, seed=run.seed, world_size=run.world_size, base_dir=base_dir)
    ledger = SimulatedLedger()
    is_card = run.device == "cuda"
    traffic = TrafficMeter(clock := LedgerClock(ledger, is_card=is_card))
    counter = StepCounter(ledger, run.world_size // run.nodes, is_card=is_card)
    instruments = _instruments(ledger, traffic, counter, is_card=is_card)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with world(rank, run.world_size), _ways(run.device, ledger, counter), fake, ledger.watching():
        trainer = Trainer(trial, workload, base_dir, instruments, device=torch.device("cpu"), clock=clock)
        if isinstance(trainer.engine, TorchEngine):
            clock.gradients = trainer.engine.gradients
        build_bytes = ledger.peak
        built = ledger.moment
        work = WorkCounter(ledger.is_offloaded)
        ledger.phase = "batch"
        for step in range(WARMUP + 1):
            batches, waiting = _batches(trainer, workload, step, range(trainer.backwards, backwards))
            traffic.take()
            counter.restart()
            ledger.restart_peak()
            if step == WARMUP:
                ledger.work, ledger.counter = work, counter
                again = Repetition((traffic, work, counter), len(waiting), ["computed"])
                clock.after_backward = again.mark
            elif isinstance(trainer.engine, TorchEngine):
                trainer.engine.leave_out(len(batches) - 1)
                batches = batches[-1:]
            begin = ledger.moment
            trainer.step(batches)
            del batches, waiting
        ledger.work = ledger.counter = None
        sent = traffic.take()
        with _disable_current_modes():
            flops = workload.flops_per_micro_batch
        watched = Step(
            ledger,
            built,
            begin,
            ledger.moment,
            build_bytes,
            trainer.engine.memory_by_category(),
            sent,
            None if flops is None else flops * backwards,
            work.take(),
            counter.take(sent),
            sum(parameter.numel() for parameter in trainer.model.parameters()),
        )
        trainer.engine.close()
        return watched


@contextmanager
def _ways(device: str, ledger: AllocationLedger, counter: StepCounter) -> Iterator[None]:
    """Run the body with doubles of what tensors without data cannot do, and on the way of the device."""
    way = on_card(counter, ledger) if device == "cuda" else nullcontext()
    operators = operators_of_a_card() if device == "cuda" else nullcontext()
    offload = nullcontext() if device == "cpu" else fsdp_offload(ledger)  # there all memory is one
    by_rules = partial(ruled_engine, ledger=ledger, is_apart=device != "cpu")
    deepspeed = patch("zbench.peers.deepspeed.build_engine", by_rules)
    ddp = in_python(is_card=device == "cuda")
    two = _of_many_alike()
    real = as_real_to_transformers(), as_real_to_deepcopy()
    with real[0], real[1], ddp, two, _whole_shapes_apart(), deepspeed, way, operators, offload:
        yield


@contextmanager
def _of_many_alike() -> Iterator[None]:
    """Do two of many things that are alike: the pieces of a parameter, and a parameter's chunks."""

    def ends(numel: int, length: int) -> Sequence[int]:
        every = range(0, numel, length)
        return every if len(every) < 3 else (every[0], every[-1])

    with (
        patch.object(deferred, "beginnings", ends),
        patch.object(_fsdp_param, "_chunk_with_empty", ChunksOnDemand),
    ):
        yield


def _whole_shapes_apart() -> AbstractContextManager[Any]:
    """Keep from the ledger the fake tensors of whole shapes that DTensor learns shapes from."""
    propagate = ShardingPropagator._propagate_tensor_meta_non_cached

    def apart(propagator: ShardingPropagator, schema: OpSchema) -> Any:
        with _disable_current_modes():
            return propagate(propagator, schema)

    return patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", apart)


def _batches(
    trainer: Trainer, workload: Workload, step: int, unused: range
) -> tuple[list[MicroBatch], list[Batch]]:
    """Return the micro-batches that are run, and those that only take their memory."""
    with _disable_current_modes():
        real = trainer.batches(step)
        idle = [workload.batch(step, micro, dist.get_rank()) for micro in unused]
    run = [(seed, weight, tuple(map(_fake, batch))) for seed, weight, batch in real]
    return run, [tuple(map(_fake, batch)) for batch in idle]


def _shortened(trial: TrialSpec) -> TrialSpec:
    """Return the trial with at most MICRO_BATCHES in a step."""
    section, key = ("engine", "gradient_accumulation_steps")
    if trial.engine.accumulation_mode != "micro_steps":
        section, key = ("workload", "backwards_per_step")
    changed = getattr(trial, section)
    most = min(getattr(changed, key), MICRO_BATCHES)
    return trial.model_copy(update={section: changed.model_copy(update={key: most})})


def _instruments(
    ledger: AllocationLedger, traffic: TrafficMeter, counter: StepCounter, *, is_card: bool
) -> Instruments:
    """Return instruments that count, and the memories and the transport of a CPU or of a card."""

    def host(device: torch.device) -> HostMemory:
        return CardHostMemory(device, ledger, counter) if is_card else HostMemory(device, ledger)

    def to_device(model: nn.Module, device: torch.device) -> nn.Module:
        ledger.move_to_device(model.buffers())
        return model

    return Instruments(
        wrap_collectives=lambda inner: WatchedCollectives(inner, traffic, counter),
        memories=lambda device: Memories(DeviceMemory(device), host(device)),
        on_host=ledger.on_host if is_card else nullcontext,  # else all memory is one
        to_device=to_device,
        transport=card_transport if is_card else transport_of(lambda _: SimulatedCrossMemory),
        device_type="cuda" if is_card else None,
    )


def as_real_to_transformers() -> AbstractContextManager[Any]:
    """Make transformers treat fake tensors as real ones when it creates masks, as it does in a real step.

    It checks because fake tensors have no values; here the values that masks depend on are known (`follow`).
    """
    masks = sys.modules.get("transformers.masking_utils")
    asked = getattr(masks, "is_tracing", None)
    return nullcontext() if asked is None else patch.object(masks, "is_tracing", lambda *_: asked())


@contextmanager
def world(rank: int, size: int) -> Iterator[None]:
    """Initialize a process group of `size` ranks that sends nothing, as rank `rank`."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401 - registers the backend

    dist.init_process_group("fake", rank=rank, world_size=size, store=HashStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _fake(x: Tensor) -> Tensor:
    fake = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    set_value(fake, x)
    return fake


def set_value(tensor: Tensor, value: Tensor) -> None:
    """Set the known value of a fake tensor."""
    setattr(tensor, _ATTRIBUTE, value)


def value_of(tensor: Tensor) -> Tensor | None:
    """Return the value of a fake tensor, or None if it is unknown."""
    return tensor.__dict__.get(_ATTRIBUTE)


def follow(func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Set the value of `out` if it is a small integer tensor and the values of all inputs are known."""
    if not isinstance(out, Tensor) or out.dtype not in _WHOLE or out.numel() > _LARGEST:
        return
    tensors = [*tensors_of((args, kwargs))]
    if not tensors and func._overloadpacket not in _FACTORIES:
        return
    if any(value_of(x) is None for x in tensors):
        out.__dict__.pop(_ATTRIBUTE, None)
        return
    with _disable_current_modes():
        values, keywords = tree_map(lambda x: value_of(x) if isinstance(x, Tensor) else x, (args, kwargs))
        set_value(out, func(*values, **keywords))


class SimulatedCrossMemory(GroupCollectives):
    """Collectives of ranks on one host; none allocates, and no thread runs what follows one."""

    def follow(self, work: Work, run: Callable[[], object]) -> Work:
        work.wait()
        run()
        return Done()

    def _reduce_scatter(self, send: Tensor, out: Tensor, call: Call) -> Work:
        return Done()

    def _all_gather(self, flat: Tensor, call: Call) -> Work:
        return Done()
