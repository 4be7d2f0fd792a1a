"""How often the host waits for a device in a step, counted without one: as docs/device.md says.

The engine trains fake tensors of a CUDA device, beside the model of streams. What waits is an operator that
reads the device or copies between it and ordinary memory, an event or a stream that the host waits for, and
work of another thread. Only the thread that launches counts: the engine's own wait beside it.
"""

import ctypes
import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from ruamel.yaml import YAML
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.covering import by_default
from tests.engine.far_memory import streams
from zbench.engine import Engine, Instruments, build_engine
from zbench.engine.memory import kinds
from zbench.engine.memory.kinds import DeviceMemory, Memories, PinnedHostMemory
from zbench.engine.optimizer import threads
from zbench.engine.transport import buffers, process_group, works
from zbench.engine.transport.host_staged import HostStagedCollectives
from zbench.engine.transport.process_group import ProcessGroupCollectives
from zbench.engine.transport.single import SingleProcessCollectives
from zbench.engine.transport.works import Done, QueuedWork, WorkerThread
from zbench.estimate.simulate import SimulatedCrossMemory, world
from zbench.spec.engine import EngineSpec

CPU, DEVICE = torch.device("cpu"), torch.device("cuda", 0)
SIZES = {"reduce_bucket_size": 4096, "allgather_bucket_size": 4096, "param_persistence_threshold": 0}
"""Each of six layers' weights is a bucket, and the biases are one more."""
PAGE = Path(__file__).parents[3] / "docs" / "device.md"
ROWS = re.findall(r"^\| `(\{.*\})` \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text(), flags=re.MULTILINE)
COLUMNS: list[tuple[int, Callable[..., Any]]] = [
    (1, lambda *_: SingleProcessCollectives()),
    (2, lambda group, local, *_: ProcessGroupCollectives(group, local.device)),
    (2, lambda group, _, host, *__: HostStagedCollectives(SimulatedCrossMemory(group, CPU), host)),
]
"""The number of ranks, and how they communicate: alone, by NCCL, sharing a card."""
aten = torch.ops.aten


class HostWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts, by what it is, each wait of the thread that launches; what is read of fake tensors is 0."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self._elsewhere = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (aten._local_scalar_dense.default, aten.equal.default):
            self.note("a value is read", args[0].device == DEVICE)
            return func is aten.equal.default or (0.0 if args[0].is_floating_point() else 0)
        if func is aten._to_copy.default:
            crosses = kwargs.get("device", args[0].device).type != args[0].device.type
            self.note("an ordinary copy", crosses and not kwargs.get("non_blocking"))
        if func is aten.copy_.default:
            self.note("an ordinary copy", args[0].device.type != args[1].device.type and not any(args[2:]))
        return func(*args, **kwargs)

    def note(self, kind: str, waits: bool = True) -> None:
        self.counts[kind] += waits and not self._elsewhere

    def noted(self, kind: str, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that waits, counted."""
        return lambda *args: (self.note(kind), wait(*args))[1]

    def elsewhere(self, thread: WorkerThread, run: Callable[[], object]) -> QueuedWork:
        """Run what another thread would, at once: fake tensors are one thread's."""
        task = QueuedWork(run)
        self._elsewhere = True
        task.do()
        self._elsewhere = False
        return task

    def patches(self) -> list[tuple[Any, str, Any]]:
        """Return what is replaced: CUDA by the model of streams, and waits by counted ones."""
        modelled = mock.Mock(wraps=torch, cuda=streams.Device(DEVICE.index))
        modelled.empty = lambda *args, pin_memory=False, **options: torch.empty(*args, **options)
        event, stream = streams.Event, streams.Stream
        # A torch without CUDA does not index fake tensors of its devices: it gets the guard of meta tensors.
        library = ctypes.CDLL(str(Path(torch.__path__[0]) / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * 15).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        guards[1] = guards[1] or guards[14]  # by c10::DeviceType
        nccl = ("all_to_all_single", "all_gather_into_tensor", "broadcast", "all_reduce")
        return [
            *((module, "torch", modelled) for module in (kinds, buffers, process_group, works)),
            *((dist, name, lambda *args, **options: Done()) for name in nccl),
            (process_group, "Neighbour", lambda *_: mock.Mock(**{"gone.return_value": None})),
            (threads, "_node_of_gpu", lambda device: 0),
            (nn.Linear, "reset_parameters", lambda layer: None),  # random numbers need the device
            (torch.cuda, "_lazy_init", lambda: None),
            (Tensor, "record_stream", lambda tensor, stream: None),
            (Tensor, "pin_memory", lambda tensor: tensor),
            (event, "synchronize", self.noted("an event", event.synchronize)),
            (stream, "synchronize", self.noted("a stream", stream.synchronize)),
            (QueuedWork, "wait", self.noted("another thread", QueuedWork.wait)),
            (WorkerThread, "submit", lambda thread, run: self.elsewhere(thread, run)),
        ]


def bring_gradients(engine: Engine, retain_graph: bool) -> None:
    """Do what the backward of a loss does with every parameter, the last one first."""
    for info in reversed(engine._core.state.param_infos):
        p = info.parameter
        engine._core.gradients.accept(info.index, torch.empty(p.shape, dtype=p.dtype, device=DEVICE))


def memories(device: torch.device) -> Memories:
    host = PinnedHostMemory(device)
    host.pinned = False  # there is no driver to lock pages
    return Memories(DeviceMemory(device), host)


def waits_of_a_step(size: int, transport: Any, keys: dict[str, Any]) -> Counter[str]:
    """Return what the host waits for in the third step (a forward, its backwards and `step`)."""
    waits = HostWaits()
    spec = EngineSpec.model_validate(SIZES | keys)
    with ExitStack() as stack:
        for patch in waits.patches():
            stack.enter_context(mock.patch.object(*patch))
        streams.Threads.choose(DEVICE.index + 1)  # as where a user has chosen none: torch's guards suffice
        for context in (FakeTensorMode(allow_non_fake_inputs=True), waits, world(0, size)):
            stack.enter_context(context)
        model = nn.Sequential(*(nn.Linear(64, 64, device=DEVICE) for _ in range(6)))
        instruments = Instruments(memories=memories, transport=transport)
        engine = build_engine(model, spec, dist.group.WORLD, instruments=instruments)
        stack.callback(engine.close)
        gradients = SimpleNamespace(backward=partial(bring_gradients, engine))
        for _ in range(3):
            waits.counts.clear()
            for _ in range(engine.policies.accumulation.divisor):
                model(torch.empty(2, 64, dtype=next(model.parameters()).dtype, device=DEVICE))
                engine.backward(gradients)  # type: ignore[arg-type]
            engine.step()
        return +waits.counts


@pytest.mark.parametrize(
    "k", by_default(lambda k: k % 6 == 0, [(k,) for k in range(len(ROWS))]), ids=lambda k: ROWS[k][0]
)
def test_the_host_waits_as_often_as_the_page_says(k: int) -> None:
    row = ROWS[k]
    keys = YAML(typ="safe").load(row[0])
    counts = [waits_of_a_step(*column, keys) for column in COLUMNS]
    assert [c.total() for c in counts] == list(map(int, row[1:])), [dict(c) for c in counts]
