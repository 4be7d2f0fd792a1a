"""`zbench doctor --calibrate` prints what `machine:` of a sweep file takes."""

import json
from typing import Any

import pytest

from zbench.cli import doctor
from zbench.spec.load import sweep_from_mapping

RATES = {
    "flops": {"float32": 6e10, "bfloat16": 9e10},
    "memory_bandwidth": 2e10,
    "host_link": 2e10,
    "host_memory_bandwidth": 2e10,
    "link_bandwidth": None,
    "link_latency": None,
    "operator_latency": 4e-6,
}


def check(machine: dict[str, Any]) -> None:
    """A sweep file takes it, and no rate is missing that one rank has."""
    sweep = sweep_from_mapping({"name": "calibrated", "machine": machine})
    assert sweep.machine is not None
    assert {"flops", "memory_bandwidth", "operator_latency"} <= machine.keys()
    assert 0 < machine.get("attained", 1.0) <= 1


def test_what_was_measured_is_printed_as_a_sweep_file_takes_it(
    zbench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(target: str, *_: object, **__: object) -> dict[str, Any]:
        return RATES if target.endswith(":measure") else {"step_s": 0.05}

    monkeypatch.setattr(doctor, "run_once", measured)
    said = zbench("doctor", "--calibrate", "--world-size", "1", "--json")
    document = json.loads(said.out)
    assert said.code == document["exit_code"] == 0
    assert document["machine"]["flops"] == RATES["flops"]
    check(document["machine"])


@pytest.mark.soak
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_this_machine_is_measured(zbench: Any, ranks: str) -> None:
    said = zbench("doctor", "--calibrate", "--world-size", ranks, "--json")
    assert said.code == 0, said.err
    machine = json.loads(said.out)["machine"]
    check(machine)
    assert ("link_bandwidth" in machine) == (ranks == "2")
