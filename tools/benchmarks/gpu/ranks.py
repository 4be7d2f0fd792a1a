"""Several ranks on one card under NCCL: verdicts of configurations, and ranks that do not go on.

Elsewhere in `tools.gpu` a rank has the card to itself, so this part alone sees NCCL with more than one rank.
On a CPU gloo takes NCCL's place.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGCONT
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from tools.benchmarks.gpu.commands import sweep
from tools.benchmarks.gpu.outcome import Bar, PartOutcome, Place
from zbench.gpus import MULTI_RANK

WORLDS = (2, 4, 8)
FILE = Path(__file__).with_name("ranks.yaml")
CASES = ("goes on", "raises", "differs", "stopped")
CAUSE = "ValueError: out of memory, say"
SOON = 10.0
"""Seconds within which every rank must have raised."""
HEARTBEAT = 5
"""Seconds after which, in this part, NCCL's monitor takes a silent process for stuck; by default 480."""
_STOPPED = {"cuda": 2.5 * HEARTBEAT, "cpu": 1.0}  # seconds; gloo has no monitor
_GIVE_UP = 90.0
COLUMNS = ("ranks", "case", "outcome", "slowest, s", "what rank 0 heard")


def run(place: Place) -> PartOutcome:
    """Train each configuration with each number of ranks, then have ranks raise, differ and stop."""
    if place.device == "cuda":
        os.environ[MULTI_RANK] = "1"
        _require_nccl()
    trained = [_trained(place, world) for world in WORLDS]
    troubles = [_kept(place, world, case) for world in WORLDS for case in CASES]
    same_bits = all(
        len({t.heard for t in troubles if t.world == world and t.trains}) == 1 for world in WORLDS
    )
    good = sum(trouble.is_good for trouble in troubles)
    says = "; ".join(f"{world} ranks: {one.says}" for world, one in zip(WORLDS, trained, strict=True))
    says += f"; {good} of {len(troubles)} troubles end as they should"
    says += "" if same_bits else "; ranks that were stopped have other weights"
    passed = same_bits and good == len(troubles) and all(one.status == "passed" for one in trained)
    rows = [COLUMNS, *(trouble.row() for trouble in troubles)]
    for world, one in zip(WORLDS, trained, strict=True):
        rows += [(str(world), row[0], row[1], row[2], row[-1]) for row in one.rows[1:]]
    slowest = max(max(trouble.seconds) for trouble in troubles if not trouble.trains)
    bars = [Bar("seconds until every rank has raised", slowest, SOON)]
    return PartOutcome("passed" if passed else "failed", says, rows, bars)


def _require_nccl() -> None:
    """Raise UsageError where NCCL is too old, before ranks say so one by one."""
    import torch

    from zbench.worker.process import backend_for

    backend_for(torch.device("cuda"), 2, 1)


def configurations(device: str) -> list[dict[str, Any]]:
    """Return the engines' keys: every stage, offload and shard groups, by both reductions where NCCL adds."""
    rows: list[dict[str, Any]] = [{"zero_stage": stage} for stage in range(4)]
    rows += [{"zero_stage": stage, "offload_optimizer": "cpu"} for stage in (1, 2, 3)]
    rows.append({"zero_stage": 2, "offload_optimizer": "cpu", "offload_schedule": "speculative"})
    rows.append({"zero_stage": 3, "offload_optimizer": "cpu", "offload_param": "cpu"})
    rows += [{"zero_stage": stage, "shard_group_size": 2} for stage in (1, 3)]
    reductions = ("rank_order", "backend") if device == "cuda" else ("rank_order",)
    return [{**row, "reduction": reduction} for row in rows for reduction in reductions]


def _trained(place: Place, world: int) -> PartOutcome:
    include = configurations(place.device)
    if place.tiny and world > WORLDS[0]:
        include = include[-2:]
    sets = [f"run.world_size={world}", f"include={json.dumps(include)}"]
    return sweep(FILE, place, f"ranks-{world}", sets=sets)


@dataclass(frozen=True, slots=True)
class Trouble:
    """How a case ended. heard: for each rank an error, or a digest of the weights that it has trained.

    seconds: for each rank, from the step in which the case happens to its end.
    """

    world: int
    case: str
    heard: tuple[str, ...]
    seconds: tuple[float, ...]

    @property
    def trains(self) -> bool:
        """Whether all ranks should train to the end."""
        return self.case in ("goes on", "stopped")

    @property
    def is_good(self) -> bool:
        if self.trains:
            return len(set(self.heard)) == 1 and self.heard[0].startswith("weights ")
        others, cause = (self.heard[:-1], CAUSE) if self.case == "raises" else (self.heard, "")
        names_the_last = (f"rank {self.world - 1}" in text and cause in text for text in others)
        disagree = (text.startswith("RanksDisagreeError") for text in others)
        return all(disagree) and all(names_the_last) and max(self.seconds) <= SOON

    def row(self) -> tuple[str, ...]:
        outcome = "as it should" if self.is_good else "**not as it should**"
        return (str(self.world), self.case, outcome, f"{max(self.seconds):.1f}", self.heard[0][:120])


def _kept(place: Place, world: int, case: str) -> Trouble:
    """Return how a case ended in an earlier call, or run it and keep that."""
    file = place.out / "ranks" / f"{case.replace(' ', '-')}-{world}.json"
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        return Trouble(world, case, tuple(kept["heard"]), tuple(kept["seconds"]))
    trouble = have(world, case, place.device)
    file.parent.mkdir(parents=True, exist_ok=True)
    if trouble.is_good:
        text = json.dumps({"heard": trouble.heard, "seconds": trouble.seconds}, indent=1)
        draft = file.with_suffix(".new")
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(file)
    print(trouble, flush=True)
    return trouble


def have(world: int, case: str, device: str) -> Trouble:
    """Have ranks train and meet a case; a rank that gives no answer is ended."""
    context = get_context("spawn")  # a process has one fork server, which keeps what its first user preloaded
    pipes: list[Connection] = []
    processes: list[BaseProcess] = []
    with TemporaryDirectory() as folder:
        for rank in range(world):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (theirs, case, rank, world, device, f"file://{folder}/store")
            process: BaseProcess = context.Process(target=_rank, args=arguments)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        try:
            if case == "stopped":
                _go_on_later([process.pid or 0 for process in processes], _STOPPED[device])
            answers = _answers(pipes)
        finally:
            for process in processes:
                process.kill()
                process.join()
    none = ("no answer", _GIVE_UP)
    found = [answers.get(rank, none) for rank in range(world)]
    return Trouble(world, case, tuple(text for text, _ in found), tuple(seconds for _, seconds in found))


def _rank(*arguments: Any) -> None:
    from tools.benchmarks.gpu.rank_in_trouble import train

    train(*arguments)


def _go_on_later(pids: Sequence[int], seconds: float) -> None:
    """Wait until every rank has stopped itself, and let them go on some seconds later."""
    ranks = [psutil.Process(pid) for pid in pids]
    give_up = time.monotonic() + _GIVE_UP
    while any(rank.status() != psutil.STATUS_STOPPED for rank in ranks) and time.monotonic() < give_up:
        time.sleep(0.05)
    time.sleep(seconds)
    for rank in ranks:
        rank.send_signal(SIGCONT)


def _answers(pipes: Sequence[Connection]) -> Mapping[int, tuple[str, float]]:
    answers: dict[int, tuple[str, float]] = {}
    give_up = time.monotonic() + _GIVE_UP
    left = list(pipes)
    while left and (ready := wait(left, give_up - time.monotonic())):
        for pipe in ready:
            assert isinstance(pipe, Connection)
            left.remove(pipe)
            try:
                answers[pipes.index(pipe)] = pipe.recv()
            except EOFError:
                answers[pipes.index(pipe)] = ("it ended without an answer", 0.0)
    return answers
