"""SuperOffload on the device: what speculation leaves exposed, and DeepSpeed's stage 3 beside ours.

Six engines train copies of one GPT, a step each in turn and in alternating order, so that a drift of the
machine hits all alike. `exposed` is the time of `engine.step()`, the device synchronised before it: all that
is left of the optimizer after backward. A sweep's phases are host time, which on CUDA is something else.
"""

import math
import statistics
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from tools.benchmarks.gpu.commands import deepspeed_python, sweep
from tools.benchmarks.gpu.outcome import Bar, PartOutcome, Place
from zbench.engine import Engine, build_engine
from zbench.spec.engine import EngineSpec
from zbench.workloads.data import SyntheticTokens
from zbench.workloads.models import GPT

LIMITS = {"off": 0.0, "not triggered": 1e9, "always triggered": 1e-3}
SCHEDULES = ("after_backward", "speculative")
BARS = {"off": 0.15, "not triggered": 0.15}  # exposed, speculative / after_backward
VOCABULARY, WARMUP = 1024, 2
PHASES = ("forward", "backward", "exposed")
COLUMNS = ["clipping", "schedule", *(f"{name}, ms" for name in PHASES)]

Key = tuple[str, str]
Medians = dict[Key, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Setup:
    """What the schedules are measured on; `length`, `batch`: of a micro-batch."""

    layers: int
    width: int
    length: int
    batch: int
    dtype: str
    device: str

    def engine(self, limit: float, schedule: str) -> Engine:
        """Return one engine, with the same seeded model."""
        spec = {
            "zero_stage": 1,
            "dtype": self.dtype,
            "offload_optimizer": "cpu",
            "offload_schedule": schedule,
            "gradient_clipping": limit,
            "reduce_bucket_size": 20_000_000,
        }
        torch.manual_seed(0)
        heads = max(self.width // 64, 1)
        model = GPT(
            layers=self.layers,
            width=self.width,
            heads=heads,
            vocabulary=VOCABULARY,
            sequence_length=self.length,
            tied_head=False,
            loss_chunks=1,
        )
        return build_engine(model.to(self.device), EngineSpec.model_validate(spec))

    def micro_batch(self, step: int) -> tuple[Tensor, ...]:
        """Return the tokens and targets of a step, on the device."""
        data = SyntheticTokens(vocabulary=VOCABULARY, sequence_length=self.length)
        return tuple(tensor.to(self.device) for tensor in data.draw(step, self.batch))

    def finish(self) -> float:
        """Return the time when the device has done what it was given."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


TINY = Setup(layers=1, width=64, length=32, batch=2, dtype="float32", device="cpu")
# 0.34 G parameters, six engines: 33 GB of optimizer state in host memory, doubled where it is speculative.
# `calibrated` gives it the batch.
MOST_BATCH = 96  # sequences; more do not fit into 80 GB beside the engines
WHOLE = Setup(layers=12, width=1536, length=1024, batch=8, dtype="bfloat16", device="cuda")


def one_step(engine: Engine, step: int, setup: Setup) -> list[float]:
    """Train one step and return the seconds of its phases."""
    ids, targets = setup.micro_batch(step)
    marks = [setup.finish()]
    loss = engine.model(ids, targets)
    marks.append(setup.finish())
    engine.backward(loss)
    marks.append(setup.finish())
    engine.step()
    marks.append(setup.finish())
    return [end - begin for begin, end in pairwise(marks)]


def measure(steps: int, setup: Setup) -> tuple[Medians, float]:
    """Return the median seconds of every phase after the warm-up, and those of the parameters' delivery."""
    engines = {(c, s): setup.engine(LIMITS[c], s) for c in LIMITS for s in SCHEDULES}
    times: dict[Key, list[list[float]]] = {key: [] for key in engines}
    try:
        for step in range(WARMUP + steps):
            for key in list(engines)[:: 1 if step % 2 else -1]:
                times[key].append(one_step(engines[key], step, setup))
        model = engines["off", "speculative"].model
        delivery = delivery_seconds(setup, sum(p.numel() for p in model.parameters()))
    finally:
        for engine in engines.values():
            engine.close()
    medians = {key: map(statistics.median, zip(*of[WARMUP:], strict=True)) for key, of in times.items()}
    return {key: dict(zip(PHASES, of, strict=True)) for key, of in medians.items()}, delivery


def batch_for(batch: int, backward: float, update: float, most: int = MOST_BATCH) -> int:
    """Return the batch whose backward takes at least twice the update, or the largest that fits.

    backward: seconds of that of `batch` sequences; it grows with them, and the update does not.
    """
    return max(batch, min(most, math.ceil(batch * 2 * update / backward)))


def calibrated(setup: Setup) -> Setup:
    """Return the setup with a batch under whose backward the whole update fits.

    From steps of two batches: a sequence of a small one takes longer.
    """
    engine = setup.engine(0.0, "after_backward")
    try:
        for _ in range(2):
            _, (_, backward, update) = (one_step(engine, step, setup) for step in range(2))
            setup = replace(setup, batch=batch_for(setup.batch, backward, update))
    finally:
        engine.close()
    return setup


def delivery_seconds(setup: Setup, parameters: int) -> float:
    """Return the median time of the new parameters' copy to the device, which no backward hides."""
    host = torch.empty(parameters, dtype=getattr(torch, setup.dtype), pin_memory=setup.device == "cuda")
    there = torch.empty_like(host, device=setup.device)
    seconds = []
    for _ in range(9):
        begin = setup.finish()
        there.copy_(host, non_blocking=True)
        seconds.append(setup.finish() - begin)
    return statistics.median(seconds)


def run(place: Place) -> PartOutcome:
    """Measure the schedules, then run the sweep of DeepSpeed's beside ours."""
    setup = replace(TINY if place.tiny else WHOLE, device=place.device)
    if not place.tiny:
        setup = calibrated(setup)
    medians, delivery = measure(1 if place.tiny else 12, setup)
    ratios = {
        clip: medians[clip, "speculative"]["exposed"] / medians[clip, "after_backward"]["exposed"]
        for clip in BARS
    }
    title = "exposed, clipping {}: speculative / after_backward"
    bars = [Bar(title.format(clip), round(ratios[clip], 3), bar) for clip, bar in BARS.items()]
    rows = [[*key, *(f"{median * 1e3:.2f}" for median in of.values())] for key, of in medians.items()]
    print(*rows, *bars, sep="\n", flush=True)  # in the log, if what follows is cut
    beside = _beside(place)
    exposed = medians["not triggered", "speculative"]["exposed"]
    synchronous = medians["not triggered", "after_backward"]
    bound = max(0.0, 1 - synchronous["backward"] / synchronous["exposed"])  # what backward is too short for
    says = (
        f"speculation leaves {exposed * 1e3:.2f} ms of the update exposed ({setup.batch} sequences a step);"
        f" at least {bound:.2f} of the update must be; the copy of the new parameters alone takes"
        f" {delivery * 1e3:.2f} ms; {beside.says}"
    )
    return PartOutcome(beside.status, says, [COLUMNS, *rows, *beside.rows], bars)


def _beside(place: Place) -> PartOutcome:
    python = deepspeed_python(place)
    sets = [f"engine.engine_python={python}"] if python is not None else []
    if place.tiny:
        sizes = {"layers": 1, "width": 64, "heads": 1, "vocabulary": VOCABULARY}
        sets += [f"workload.options={sizes}".replace("'", '"'), "workload.sequence_length=32", "run.steps=4"]
    return sweep(Path(__file__).with_name("superoffload.yaml"), place, "superoffload-peers", sets=sets)
