"""One rank of `ranks`: it trains, and in one step it raises, makes another call, or stops for a while."""

import hashlib
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tools.benchmarks.gpu.ranks import CAUSE, HEARTBEAT
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec
from zbench.worker.process import backend_for, device_of

WIDTH, STEPS, AT = 256, 6, 3
SPEC = {"zero_stage": 3, "param_persistence_threshold": 0, "reduction": "rank_order"}


class Net(nn.Module):
    """Three layers; `fault` is called between them."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.fault: Callable[[], None] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:2]:
            x = layer(x)
        self.fault()
        return self.layers[2](x).square().mean()  # type: ignore[no-any-return]


def train(pipe: Connection, case: str, rank: int, world: int, device: str, store: str) -> None:
    """Train, send (what this rank heard, or a digest of its weights; seconds since the case), and end."""
    os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = str(HEARTBEAT)
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # as `zbench sweep` has it
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    begun = [time.monotonic()]
    try:
        engine = _engine(rank, world, device, store)
        try:
            heard = _weights(engine, case, rank == world - 1, begun)
        finally:
            seconds = time.monotonic() - begun[0]
            with suppress(Exception):
                engine.close()  # where this rank has failed, the others hear why
    except Exception as error:
        heard = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - begun[0]
    pipe.send((heard, round(seconds, 2)))
    pipe.close()
    os._exit(0)  # what an aborted communicator has left may not end


def _engine(rank: int, world: int, wanted: str, store: str) -> Engine:
    device = device_of(wanted, rank)
    backend = backend_for(device, world, torch.cuda.device_count())
    dist.init_process_group(
        backend,
        init_method=store,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
        device_id=device if "nccl" in backend else None,
    )
    return build_engine(Net().to(device), EngineSpec.model_validate(SPEC))


def _weights(engine: Engine, case: str, is_last: bool, begun: list[float]) -> str:
    """Train; return a digest of the weights. begun: the time at which the case began, from then on."""
    device = next(engine.model.parameters()).device
    for step in range(STEPS):
        if step == AT:
            begun[0] = time.monotonic()
            engine.model.fault = _fault(case, is_last)  # type: ignore[assignment]
            if case == "differs" and is_last:
                engine.state_dict()
        x = torch.full((2, WIDTH), 1.0 + step, device=device)
        engine.backward(engine.model(x))
        engine.step()
        engine.model.fault = _nothing  # type: ignore[assignment]
    digest = hashlib.sha256()
    for _, values in sorted(engine.full_parameters().items()):
        digest.update(values.cpu().numpy().tobytes())
    return f"weights {digest.hexdigest()[:16]}"


def _fault(case: str, is_last: bool) -> Callable[[], None]:
    if case == "stopped":
        return _stop
    return _raise if case == "raises" and is_last else _nothing


def _raise() -> None:
    raise ValueError(CAUSE.removeprefix("ValueError: "))


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _nothing() -> None:
    pass
