"""What is not simulated is refused by its key, with the remedy."""

import pytest

from zbench.errors import UsageError
from zbench.estimate.reading import check_simulated
from zbench.spec.expand import expand
from zbench.spec.load import sweep_from_mapping


def trial(**sections):
    (found,) = expand(sweep_from_mapping({"name": "one", **sections}, environ={})).trials
    return found


def test_the_eager_engine_is_simulated():
    check_simulated(trial(engine={"zero_stage": 3, "offload_optimizer": "cpu"}))


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"engine": {"zero_stage": 1, "compile": "inductor"}}, "engine.compile"),
        ({"engine": {"engine": "ddp", "engine_python": "/usr/bin/python3"}}, "engine.engine_python"),
    ],
)
def test_what_depends_on_more_than_the_specification_is_refused(sections, key):
    with pytest.raises(UsageError, match=key):
        check_simulated(trial(**sections))


def test_a_script_of_ones_own_is_refused():
    known = trial()
    workload = known.workload.model_copy(update={"command": "python train.py"})
    with pytest.raises(UsageError, match=r"workload\.command.*zbench run"):
        check_simulated(known.model_copy(update={"workload": workload}))
