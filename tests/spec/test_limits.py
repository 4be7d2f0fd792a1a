"""The smallest and the largest values that keys take, and what is said beyond them."""

import pytest
from pydantic import ValidationError

from zbench.errors import SpecError
from zbench.spec.engine import EngineSpec
from zbench.spec.load import sweep_from_mapping
from zbench.spec.trial import config_id


@pytest.mark.parametrize(
    "setting",
    [
        "sequence_length=1",
        "param_persistence_threshold=0",
        "memory_limit=1",
        "timeout=500ms",
        "separate=1%",
        "separate=99%",
        "machine={flops: 0.5, memory_bandwidth: 0.5, attained: 1}",
    ],
)
def test_a_value_at_the_limit_is_taken(setting: str) -> None:
    assert sweep_from_mapping({}, [setting], {}).name == "sweep"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sequence_length=0", "a number of at least 1"),
        ("param_persistence_threshold=-1", "a number of at least 0"),
        ("memory_limit=0", "a number of at least 1"),
        ("timeout=0", "a number of more than 0"),
        ("separate=0%", "a number of more than 0"),
        ("separate=100%", "a number of less than 1"),
        ("machine={flops: 1, memory_bandwidth: 0}", "a number of more than 0"),
        ("machine={flops: 1, memory_bandwidth: 1, attained: 1.5}", "a number of at most 1"),
        ("offload_ratio=2", "a number of at most 1"),
        ("offload_ratio=auto", "a number"),
    ],
)
def test_a_value_beyond_the_limit_is_refused_with_it(setting: str, said: str) -> None:
    with pytest.raises(SpecError, match=f"expected {said}, got "):
        sweep_from_mapping({}, [setting], {})


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
@pytest.mark.parametrize(
    "key", ["lr", "options.x", "axes.options.x", "ds_config", "exclude", "machine", "options.y.z"]
)
def test_no_key_takes_a_number_that_no_record_can_hold(key: str, value: str) -> None:
    """A record is JSON: there an infinite option would become null, and be another trial."""
    text = {"axes.options.x": f"[1, {value}]", "exclude": f"[{{lr: {value}}}]"}.get(key, value)
    with pytest.raises(SpecError, match=r"expected a finite number, got (-?inf|nan)"):
        sweep_from_mapping({"workload": {"model": "mine:build"}}, [f"{key}={text}"], {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        config_id({"workload": {"options": {"x": float("nan")}}})


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_specification_made_in_python_takes_finite_numbers_only(value: float) -> None:
    with pytest.raises(ValidationError, match="finite number"):
        EngineSpec(gradient_clipping=value)
