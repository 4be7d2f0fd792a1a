"""The machine's yardstick as one rank runs it: fixed native work (csrc/yardstick) in turns."""

from pathlib import Path
from statistics import fmean
from urllib.parse import urlsplit

from zbench import _native
from zbench.spec.trial import TrialSpec
from zbench.worker.job import RankJob, threads_per_rank, write_json
from zbench.worker.turns import Turns, turn_lengths

_ROUNDS, _ORDER = 2, ("compute", "memory", "compute", "meeting", "compute")
"""Each part is spread over a turn: what else runs on the machine takes it for some milliseconds at a time."""


def run_machine(job: RankJob) -> None:
    """Run each part in each turn of a trial like this one; rank 0 writes its mean seconds in each turn."""
    trial = TrialSpec.model_validate(job.trial)
    place = Path(urlsplit(job.init_method).path).with_name("yardstick")
    threads = threads_per_rank(trial, job.local_world_size)
    stick = _native.Yardstick(str(place), job.rank, job.world_size, threads)
    parts = {"compute": stick.compute, "memory": stick.memory, "meeting": stick.meeting}
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
