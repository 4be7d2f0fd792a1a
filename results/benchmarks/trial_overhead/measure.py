"""How long a trial of a tiny model takes on 2 ranks beyond its own steps: `python measure.py > result.json`.

The whole wall time of `TrialRunner.run` less the time of all steps (the timed ones' mean times warm-up and
timed steps). What is left is start-up of two processes, their rendezvous, building model and engine,
verification, and the end: an upper bound of what the launcher adds.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

from zbench.launch.trial import TrialRunner
from zbench.record.environment import machine_facts, software_facts
from zbench.spec.trial import TrialSpec

REPEATS = 25
STEPS, WARMUP = 3, 1
TRIAL = TrialSpec.model_validate(
    {
        "workload": {"model": "mlp"},
        "run": {"world_size": 2, "steps": STEPS, "warmup_steps": WARMUP},
        "engine": {"zero_stage": 1},
    }
)


def main() -> None:
    """Measure and print one JSON document; times in seconds."""
    began = time.monotonic()
    walls, beyond = [], []
    with (
        tempfile.TemporaryDirectory() as home,
        TrialRunner(Path(home), Path(home), rerun_disturbed=False) as runner,
    ):
        runner.wait_until_ready()
        imports = time.monotonic() - began
        runner.reference(TRIAL)
        for repeat in range(REPEATS):
            began = time.monotonic()
            record = runner.run(TRIAL, repeat=repeat)
            wall = time.monotonic() - began
            assert record.timing is not None, record.error
            walls.append(wall)
            beyond.append(wall - statistics.mean(record.timing.step_seconds) * (STEPS + WARMUP))
    figures = {
        "wall_median": statistics.median(walls),
        "beyond_steps_median": statistics.median(beyond),
        "beyond_steps_max": max(beyond),
        "server_start_once": imports,
        "repeats": REPEATS,
    }
    print(
        json.dumps({"seconds": figures, "machine": machine_facts(), "software": software_facts()}, indent=2)
    )


if __name__ == "__main__":
    main()
