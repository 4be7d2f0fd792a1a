"""Ranks of one host listen at the loopback interface and nowhere else."""

import re

from tests.worker.conftest import trial
from zbench.launch.trial import TrialRunner


def test_ranks_of_a_trial_listen_at_the_loopback_interface_alone(runner: TrialRunner) -> None:
    spec = trial({"engine": "tests.worker.engines:says_where_it_listens", "zero_stage": 3})
    record = runner.run(spec)
    assert record.error is None
    (logs,) = runner.run_dir.glob(f"logs/{record.trial_id}-r0")
    matches = [re.search(r"listens at (.*)\.", file.read_text()) for file in sorted(logs.glob("*rank*"))]
    addresses = [match[1].split(",") for match in matches if match is not None]
    assert len(addresses) == 2
    for one in addresses:
        assert set(one) == {"127.0.0.1"}, "gloo listens there, and nothing elsewhere"
