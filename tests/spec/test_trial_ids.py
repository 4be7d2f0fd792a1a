"""Trial IDs never change: run directories and exports of earlier versions name trials by them."""

from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping

GOLDEN = ["b5eca3fac0c6", "6b6f995cdb95", "998f85c89502", "ba43497f1137"]


def test_trial_ids_are_what_they_were() -> None:
    sweep = sweep_from_mapping(
        {
            "name": "golden",
            "workload": {"model": "gpt", "preset": "nano", "micro_batch_size": 2},
            "run": {"world_size": 2, "repeats": 5, "timeout": "30s", "memory_limit": "2Gi"},
            "engine": {"gradient_clipping": 1.0, "optimizer": {"name": "adamw", "lr": 1e-3}},
            "axes": {"zero_stage": [0, 1, 2, 3]},
        },
        environ={},
    )
    assert [trial.trial_id for trial in expand(sweep).trials] == GOLDEN
