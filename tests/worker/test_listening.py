"""What other users of the machine can reach of a trial on one host: nothing but gloo's loopback ports."""

import json
import re
from typing import Any

import pytest

from tests.worker.conftest import trial
from zbench.launch.trial import TrialRunner


@pytest.fixture(scope="module")
def surroundings(runner: TrialRunner) -> list[dict[str, Any]]:
    """Return what each rank of a trial printed of its surroundings."""
    record = runner.run(trial({"engine": "tests.worker.engines:tells_its_surroundings", "zero_stage": 3}))
    assert record.error is None
    (logs,) = runner.run_dir.glob(f"logs/{record.trial_id}-r0")
    texts = [re.search(r"surroundings: (.*)", file.read_text()) for file in sorted(logs.glob("*rank*"))]
    return [json.loads(text[1]) for text in texts if text is not None]


def test_ranks_of_a_trial_listen_at_the_loopback_interface_alone(surroundings: list[dict[str, Any]]) -> None:
    assert len(surroundings) == 2
    for rank in surroundings:
        assert set(rank["rank"]) == {"127.0.0.1"}, "gloo listens there; there is no TCP store"
        assert rank["servers"], "a server started the rank"
        assert not any(rank["servers"]), "no server listens: the command has a socket pair"


def test_ranks_of_a_trial_have_a_private_temporary_folder(surroundings: list[dict[str, Any]]) -> None:
    for rank in surroundings:
        folder, mode = rank["temporary folder"]
        assert mode == 0o700
        assert "zbench-" in folder, "below the folder of the command, not the folder for all users"
        assert rank["headers"] == "0", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
