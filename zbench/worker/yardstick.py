"""The machine's yardstick as one rank runs it: fixed native work (csrc/yardstick, csrc/cuda) in turns."""

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

import torch

from zbench import _native
from zbench.engine.adam.cuda import cuda_library, launch
from zbench.job.jobs import RankJob, threads_per_rank, write_json
from zbench.job.turns import Turns, turn_lengths
from zbench.spec.trial import TrialSpec
from zbench.worker.process import device_of

_ROUNDS, _ORDER = 2, ("compute", "memory", "compute", "meeting", "compute")
"""Each part is spread over a turn: what else runs on the machine takes it for some milliseconds at a time."""

_PRODUCTS, _COPIES, _MEETINGS = 16, 16, 16
"""Of a sample on CUDA."""


def run_machine(job: RankJob) -> None:
    """Run each part in each turn of a trial like this one; rank 0 writes its mean seconds in each turn."""
    trial = TrialSpec.model_validate(job.trial)
    place = Path(urlsplit(job.init_method).path).with_name("yardstick")
    threads = threads_per_rank(trial, job.local_world_size)
    stick = _native.Yardstick(str(place), job.rank, job.world_size, threads)
    device = device_of(trial.run.device, job.local_rank)
    parts = _on_cuda(stick, device) if device.type == "cuda" else _on_cpu(stick)
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    with Turns(job.turns, job.world_size) as turns:
        for _ in turn_lengths(trial.run.steps):
            turns.wait()
            samples = [(name, parts[name]()) for _ in range(_ROUNDS) for name in _ORDER]
            for name, values in seconds.items():
                values.append(fmean(value for part, value in samples if part == name))
        turns.over()
    if job.rank == 0:
        write_json(Path(job.result_path), {"version": _native.YARDSTICK_VERSION, "seconds": seconds})


def _on_cpu(stick: _native.Yardstick) -> dict[str, Callable[[], float]]:
    return {"compute": stick.compute, "memory": stick.memory, "meeting": stick.meeting}


def _on_cuda(stick: _native.Yardstick, device: torch.device) -> dict[str, Callable[[], float]]:
    """Return the parts on a device: matrix products, copies within its memory, and products between meetings.

    Ranks meet on the host, so that no library's collective is part of it.
    """
    library, place = cuda_library(), ctypes.c_void_p()
    launch(library, library.zbench_cuda_yardstick, device, ctypes.byref(place))

    def run(function: Callable[..., int], times: int) -> None:
        launch(library, function, device, place, times)

    def meet() -> None:
        for _ in range(_MEETINGS):
            run(library.zbench_cuda_product, 1)
            stick.meet()

    work: dict[str, Callable[[], None]] = {
        "compute": partial(run, library.zbench_cuda_product, _PRODUCTS),
        "memory": partial(run, library.zbench_cuda_copy, _COPIES),
        "meeting": meet,
    }
    return {name: partial(stick.slowest, part) for name, part in work.items()}
