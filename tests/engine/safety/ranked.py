"""What two ranks do, for `test_ranks`; runs inside the pool's ranks."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from itertools import count, product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.engine.holding import peak_of
from tests.engine.safety.plainly import build
from tests.engine.safety.sequence_pair import alone
from tests.engine.steps.agreeing import heard
from zbench.engine import Engine, load, save
from zbench.engine.checkpoint import save_weights
from zbench.engine.memory.kinds import DeviceMemory, PinnedHostMemory
from zbench.engine.parameters.released import Released
from zbench.errors import UsageError

WIDTH, LAYERS = 96, 8


def net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def write(group: dist.ProcessGroup, row: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameters after rank 0's values were written over all ranks' others, and a step."""
    rank = dist.get_rank(group)
    engine = build(net(), row, group)
    with engine.gathered(engine.model[0], write=True), torch.no_grad():
        engine.model[0].weight.fill_(0.5 + rank)
    values = engine.full_parameters()
    train(engine)
    engine.close()
    return values


def refused_write(group: dist.ProcessGroup, row: dict[str, Any], others: bool) -> tuple[str, bool]:
    """Return the error of a rank when rank 1 raises in a context for writing, or (others) names the layers in
    another order; and whether nothing changed.
    """
    rank = dist.get_rank(group)
    engine = build(net(), row, group)
    before = engine.full_parameters()
    order = (1, 0) if others and rank == 1 else (0, 1)

    def write_mine() -> None:
        with engine.gathered([engine.model[k].weight for k in order], write=True), torch.no_grad():
            engine.model[0].weight.zero_()
            if rank == 1 and not others:
                raise KeyError("rank 1")

    message = heard(write_mine)
    same = True
    if not others or row["zero_stage"] < 3:  # a gather that disagrees ends the engine
        same = all(torch.equal(v, before[n]) for n, v in engine.full_parameters().items())
    if not others:
        train(engine)
    engine.close()
    return message, same


def with_default_device(
    group: dist.ProcessGroup, row: dict[str, Any], device: str, folder: str
) -> dict[str, torch.Tensor]:
    """Return the parameters of a run, saved and loaded, where torch makes tensors on `device` by default."""
    model = net().bfloat16()
    with torch.device(device):
        engine = build(model, row, group, dtype="bfloat16", gradient_clipping=0.1)
        for _ in range(2):
            x = torch.ones(2, WIDTH, dtype=torch.bfloat16, device="cpu")
            engine.backward(model(x).square().mean())
            engine.step()
        save(engine, Path(folder, device))
        load(engine, Path(folder, device))
        values = engine.full_parameters()
        engine.close()
    return values


def train(engine: Engine) -> None:
    """Take a step."""
    engine.backward(engine.model(torch.ones(2, WIDTH)).square().mean())
    engine.step()


class Layers(nn.Module):
    """Two layers of one shape, one frozen, and two buffers, registered in the order of `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        for number, name in enumerate(names):
            self.add_module(name, nn.Linear(4, 4))
            self.register_buffer(f"of_{name}", torch.full((3,), float(number)))
        self.get_submodule("one").requires_grad_(False)


def build_others(group: dist.ProcessGroup, row: dict[str, Any], difference: str) -> tuple[str, bool]:
    """Return what a rank hears when ranks build models that differ, and whether its model is as it was."""
    rank = dist.get_rank(group)
    model = Layers(["one", "two"] if rank == 0 or difference != "order" else ["two", "one"])
    if difference == "buffer" and rank == 1:
        model.register_buffer("of_two", torch.zeros(2, 2))
    if difference == "trained" and rank == 1:
        for parameter in model.parameters():
            parameter.requires_grad_(not parameter.requires_grad)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    message = heard(lambda: build(model, row, group))
    return message, all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def save_and_load(
    group: dist.ProcessGroup, row: dict[str, Any], folder: str
) -> tuple[int, int, int, int, bool]:
    """Return the most bytes that were held by saving streamed to rank 0, by saving weights alone, and by
    reading the whole state; the bytes of the state, and whether it loads again.
    """
    gc.collect()
    gc.freeze()  # so that to collect again is quick
    row = row | {"reduce_bucket_size": WIDTH * WIDTH, "allgather_bucket_size": WIDTH * WIDTH}
    engine = build(net(), row, group)
    for _ in range(2):
        train(engine)
    state = engine.state_dict()
    size = sum(v.nbytes for v in state.values())
    path = Path(folder) / "checkpoint"
    save(engine, Path(folder) / "first")
    streamed = peak_of(lambda: save(engine, path))
    weights = peak_of(lambda: save_weights(engine, Path(folder) / "weights.safetensors"))
    whole = peak_of(engine.state_dict)
    engine.close()
    other = build(net(), row, group)
    load(other, path)
    loaded = other.state_dict()
    other.close()
    same = all(torch.equal(v, loaded[k]) for k, v in state.items())
    return streamed, weights, whole, size, same


@contextmanager
def refusing(at: int) -> Iterator[None]:
    """Have the allocation number `at` of every kind of memory raise MemoryError."""
    numbers = count()

    def failing(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def call(*args: Any) -> torch.Tensor:
            if next(numbers) == at:
                raise MemoryError(f"allocation {at}")
            return allocate(*args)

        return call

    with ExitStack() as patches:
        for kind, name in product((DeviceMemory, PinnedHostMemory), ("zeros", "empty")):
            patches.enter_context(mock.patch.object(kind, name, failing(getattr(kind, name))))
        yield


def lacks_memory(group: dist.ProcessGroup, row: dict[str, Any]) -> list[str]:
    """Build an engine while rank 1 cannot allocate; return what is heard until it can, and train."""
    texts = list[str]()
    model = net()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    while True:
        try:
            with refusing(len(texts)) if dist.get_rank(group) == 1 else nullcontext():
                engine = build(model, row, group)
            break
        except (MemoryError, UsageError) as error:
            texts.append(f"{type(error).__name__}: {error}")
        assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    train(engine)
    engine.close()
    return texts


def wrap(group: dist.ProcessGroup, row: dict[str, Any]) -> list[str]:
    """Return what is heard when DDP or FSDP wraps the model of an engine, or an engine is built on theirs."""
    model = net()
    x = torch.ones(2, WIDTH)
    engine = build(model, row, group)
    nested = nn.Sequential(model)

    def train_wrapped(use: nn.Module) -> None:
        for _ in range(2):
            engine.backward(use(x).square().mean())
            engine.step()

    texts = [heard(lambda: DistributedDataParallel(model, process_group=group))]
    train(engine)
    copy = copy_of(engine)
    texts.append(heard(lambda: train_wrapped(DistributedDataParallel(nested, process_group=group))))
    engine.close()
    texts.append(heard(lambda: build(DistributedDataParallel(copy, process_group=group), row, group)))
    texts.append(
        heard(lambda: build(fully_shard(net(), mesh=DeviceMesh.from_group(group, "cpu")), row, group))
    )
    return texts


def copy_of(engine: Engine) -> nn.Module:
    """Return a copy of the model, which belongs to no engine."""
    with engine.gathered(engine.model):
        return deepcopy(engine.model)


def written_by_a_collective(
    group: dist.ProcessGroup, row: dict[str, Any], use: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the parameters after a collective of the user's has written one, and as they should be."""
    engine = build(net(), row, group)
    dtype = engine.model[0].weight.dtype
    engine.backward(engine.model(torch.ones(2, WIDTH, dtype=dtype)).square().mean())
    engine.step()
    expected = engine.full_parameters()
    released = isinstance(engine.model[1].weight, Released)
    with engine.gathered(engine.model[1]) if released else nullcontext(), torch.no_grad():
        weight = engine.model[1].weight
        if use == "all_reduce":
            expected["1.weight"] = 2 * weight.float()
            dist.all_reduce(weight, group=group)
        elif use == "all_gather":
            sent = torch.full_like(weight[: WIDTH // 2], 1 + dist.get_rank(group))
            dist.all_gather_into_tensor(weight.detach(), sent, group=group)
            expected["1.weight"][: WIDTH // 2], expected["1.weight"][WIDTH // 2 :] = 1, 2
        else:
            part = weight.detach()[70] if use == "of a part" else weight
            if dist.get_rank(group) == 0:
                part.fill_(7)
            dist.broadcast(part, 0, group=group)
            expected["1.weight"][70 if use == "of a part" else slice(None)] = 7
    values = engine.full_parameters()
    for _ in range(2):
        engine.backward(engine.model(torch.ones(2, WIDTH, dtype=dtype)).square().mean())
        engine.step()
    whole = engine.full_parameters()
    assert all(torch.equal(whole[n].to(dtype), p) for n, p in engine.model.state_dict().items())
    engine.close()
    return values, expected


def saved_by_torch(
    group: dist.ProcessGroup, row: dict[str, Any], other_row: dict[str, Any], folder: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the state after a step that follows a resume by torch's checkpoint, and without one."""
    engine, other = build(net(), row, group), build(net(), other_row, group)
    train(engine)
    checkpoint.save(engine.state_dict(), checkpoint_id=folder, process_group=group)
    train(engine)
    state = other.state_dict()
    checkpoint.load(state, checkpoint_id=folder, process_group=group)
    other.load_state_dict(state)
    train(other)
    states = other.state_dict(), engine.state_dict()
    engine.close()
    other.close()
    return states


def drawn(group: dist.ProcessGroup, row: dict[str, Any]) -> bool:
    """Return whether what a run with dropout draws, resumed by each rank alone, is what its forwards draw."""
    moments = {"optimizer": {"moments_dtype": "bfloat16", "moments_rounding": "stochastic"}}
    seed = 7 + dist.get_rank(group)
    drops = nn.Sequential(*net(), nn.Dropout())
    torch.manual_seed(seed)
    state = dict[str, torch.Tensor]()
    for of in (group, alone(dist.get_rank(group))):
        engine = build(deepcopy(drops), row, of, **moments)
        engine.load_state_dict(state or engine.state_dict())
        train(engine)
        with engine.gathered(engine.model, write=True):
            state = engine.state_dict()
        engine.close()
    after = torch.get_rng_state()
    torch.manual_seed(seed)
    for _ in range(2):
        drops(torch.ones(2, WIDTH))
    return torch.equal(torch.get_rng_state(), after)


class Everything(nn.Module):
    """A layer, and frozen parameters and buffers of dtypes and layouts that backends do not send."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)
        values = torch.randint(1, 9, (WIDTH,), generator=torch.Generator().manual_seed(seed))
        names = ["float8_e4m3fn", "float8_e5m2", "int8", "int16", "uint16", "uint32", "uint64"]
        for name in names:
            frozen = nn.Parameter(values.to(getattr(torch, name)), requires_grad=False)
            self.register_parameter(f"parameter_{name}", frozen)
        for name in ("float8_e4m3fn", "int16", "complex64"):
            self.register_buffer(f"buffer_{name}", values.to(getattr(torch, name)))
        rows = torch.diag(values.float())
        self.register_buffer("coo", rows.to_sparse())
        self.register_buffer("csr", rows.to_sparse_csr())
        self.register_buffer("permuted", values.view(4, -1).t())


def share_every_dtype(group: dist.ProcessGroup, stage: int) -> dict[str, list[float]]:
    """Return what a rank's model holds after the build and a step: rank 0's values."""
    engine = build(Everything(dist.get_rank(group)), {"zero_stage": stage}, group)
    engine.backward(engine.model.layer(torch.ones(2, WIDTH)).square().mean())  # type: ignore[operator]
    engine.step()
    frozen = {name: p for name, p in engine.full_parameters().items() if name.startswith("parameter_")}
    values = numbers_of({**frozen, **dict(engine.model.named_buffers())})
    expected = numbers_of(dict(Everything(0).named_buffers()))
    assert all(values[name] == numbers for name, numbers in expected.items())
    engine.close()
    return values


def numbers_of(tensors: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    return {name: v.to_dense().to(torch.complex64).real.flatten().tolist() for name, v in tensors.items()}
