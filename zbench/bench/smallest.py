"""The smallest trial that trains a model, for benches that measure the measuring."""

from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import TrialSpec


def smallest_trial() -> TrialSpec:
    """Return a trial of one rank, eight steps and no verification."""
    sweep = sweep_from_mapping(
        {
            "name": "smallest",
            "workload": {"model": "gpt", "preset": "nano", "sequence_length": 64, "micro_batch_size": 2},
            "run": {"world_size": 1, "threads_per_rank": 1, "warmup_steps": 2, "steps": 8},
            "verify": {"mode": "off"},
        },
        environ={},
    )
    (found,) = expand(sweep).trials
    return found
