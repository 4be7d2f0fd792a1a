"""A pool of ranks for tests: processes that stay, so that a case costs what it computes and nothing more.

Import the fixture `ranks` into a conftest.py; every suite that needs several ranks asks for it.

They are forked from a fork server, which has imported what every rank needs and computes nothing: children
of a process that has computed on several OpenMP threads may hang.
"""

import gc
import importlib
import io
import pickle
import tempfile
import traceback
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from multiprocessing import Pipe, forkserver, get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from zbench.gpus import all_gpus

PRELOAD = [
    "zbench.measure.shim",  # before torch, so that cases can count allocated bytes
    "torch.distributed",
    "zbench.engine",
    # inductor asks a GPU for its properties when it is imported, and CUDA does not survive a fork
    *([] if all_gpus() else ["torch._inductor.compile_fx", "zbench.engine.compiled.compile"]),
]


@cache
def fork_server() -> ForkServerContext:
    """Return a context whose processes have imported `PRELOAD`."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")  # a process that forks may not have more
        patch.setenv("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to ask for devices without starting CUDA
        forkserver.ensure_running()
    return context


@pytest.fixture(scope="session")
def ranks() -> Iterator["RankPool"]:
    """Four processes with gloo groups of 1, 2, 3 and 4 ranks."""
    pool = RankPool(4)
    yield pool
    pool.close()


class RankError(AssertionError):
    """A case failed on a rank; the text is that rank's traceback."""


class RankPool:
    """`size` processes with a gloo group for every smaller world; `run` calls a function on the first few."""

    def __init__(self, size: int, timeout: float = 120.0) -> None:
        self.size, self.timeout = size, timeout
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(self.size):
            ours, theirs = Pipe()
            process = fork_server().Process(
                target=serve, args=(theirs, rank, self.size, f"{self._folder.name}/store")
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def begin(self, world_size: int, function: str, *args: Any, **kwargs: Any) -> None:
        """Have each rank of a world call `module:function`(group, *args, **kwargs)."""
        if not self._processes:
            self._start()
        for pipe in self._pipes[:world_size]:
            send(pipe, (world_size, function, args, kwargs))

    def answer(self, rank: int, timeout: float) -> tuple[bool, Any]:
        """Return whether one rank's call returned, and what; or the traceback."""
        if not self._pipes[rank].poll(timeout):
            raise RankError(f"rank {rank}: no answer after {timeout} s")
        answer: tuple[bool, Any] = receive(self._pipes[rank])
        return answer

    def run(self, world_size: int, function: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Return what `module:function`(group, *args, **kwargs) returned on each rank of a world."""
        self.begin(world_size, function, *args, **kwargs)
        pipes = self._pipes[:world_size]
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < world_size:
            ready = wait([p for k, p in enumerate(pipes) if k not in answers], timeout=self.timeout)
            if not ready:
                self.close()
                failed = next((a for ok, a in answers.values() if not ok), None)
                raise RankError(failed or f"{function}: no answer from some rank after {self.timeout} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                answers[pipes.index(pipe)] = receive(pipe)
        for ok, answer in answers.values():
            if not ok:
                raise RankError(answer)
        return [answers[rank][1] for rank in range(world_size)]

    def close(self) -> None:
        """End every process."""
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self._processes, self._pipes = [], []


def serve(pipe: Connection, rank: int, size: int, store: str) -> None:
    """Be a rank: obey the pool until it is gone."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    gc.freeze()  # collections skip what is here
    last = ""
    groups = {world: dist.new_group(list(range(world))) for world in range(1, size + 1)}
    while True:
        try:
            world, function, args, kwargs = receive(pipe)
        except (EOFError, KeyboardInterrupt):
            return
        module, _, name = function.partition(":")
        if module != last:
            gc.collect()  # what another file's cases left in cycles is none of this one's
            last = module
        try:
            answer = (True, getattr(importlib.import_module(module), name)(groups[world], *args, **kwargs))
        except BaseException:
            answer = (False, f"rank {rank}:\n{traceback.format_exc()}")
        send(pipe, answer)


def send(pipe: Connection, message: object) -> None:
    """Send a message; its tensors arrive dense, detached and on the CPU.

    multiprocessing shares a tensor's memory instead, for which the reader connects to the sender, once for
    each tensor, and both prove who they are: that took a third of the time of a small case.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(message)
    pipe.send_bytes(buffer.getbuffer())


def receive(pipe: Connection) -> Any:
    """Return the next message. EOFError when the other end is gone."""
    return pickle.loads(pipe.recv_bytes())


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if type(thing).__name__ not in ("Tensor", "Parameter"):  # torch may not have been imported
            return NotImplemented
        import torch

        values = thing.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return _tensor, (values.numpy().tobytes(), thing.dtype, tuple(thing.shape))


def _tensor(data: bytes, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
