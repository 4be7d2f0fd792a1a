"""What is not simulated is refused by its key, with the remedy."""

from typing import Any

import pytest

from tests.making import make_trial
from zbench.errors import UsageError
from zbench.estimate.reading import check_simulated


@pytest.mark.parametrize(
    ("engine", "workload", "message"),
    [
        ({"zero_stage": 1, "compile": "inductor"}, {}, r"engine\.compile.*aot_eager"),
        ({"engine": "ddp", "engine_python": "/usr/bin/python3"}, {}, r"engine\.engine_python"),
        ({}, {"command": "python train.py"}, r"workload\.command.*zbench run"),
    ],
)
def test_is_refused_by_its_key(engine: dict[str, Any], workload: dict[str, Any], message: str) -> None:
    check_simulated(make_trial({"zero_stage": 3, "offload_optimizer": "cpu"}))
    with pytest.raises(UsageError, match=message):
        check_simulated(make_trial(engine, workload=workload))
