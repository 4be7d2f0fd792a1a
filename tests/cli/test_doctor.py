"""`zbench doctor` tells what is wrong with this machine, and measures its noise and rates."""

import sys
from typing import Any

import pytest

from tests.cli.conftest import stand_in
from zbench.launch import doctor
from zbench.spec.load import sweep_from_mapping


def test_unwritable_results_directory_fails(zbench, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "trial_checks", lambda: iter([]))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    document = zbench("doctor", "--json").document
    assert document["exit_code"] == 6
    (failed,) = [check for check in document["checks"] if check["status"] == "fail"]
    assert failed["name"] == "results"


def test_report_is_one_line_a_check(zbench, monkeypatch):
    monkeypatch.setattr(doctor, "trial_checks", lambda: iter([doctor.Check("two ranks", "ok", "met " * 50)]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "60")
    output = zbench("doctor")
    assert output.code == 0
    assert output.out.splitlines()[-1].startswith(f"ok    {'two ranks':22}  met met")
    lines = [line.split() for line in output.out.splitlines()]
    assert lines[-1] == ["ok", "two", "ranks", *["met"] * 50], "a terminal folds it, and a pipe does not"
    assert any(word.startswith("OMP_NUM_THREADS") for line in lines for word in line)


@pytest.fixture
def stood_in(tmp_path, monkeypatch):
    """This interpreter is a stand-in."""
    monkeypatch.setattr(sys, "executable", str(stand_in(tmp_path / "python")))


@pytest.mark.usefixtures("stood_in")
def test_aa_reports_noise_margin_and_effect(zbench):
    code, text, _ = zbench("doctor", "--aa", "--blocks", "9")
    assert code == 0
    for words in ("1 configurations, 9 blocks, 0 false alarms", "--threshold step_time="):
        assert words in text
    noise = zbench("doctor", "--aa", "--blocks", "9", "--json").document["aa"]
    assert 0.001 < noise["noise"] < 0.02
    assert noise["margin"] < noise["detectable"]


def check_machine(machine: dict[str, Any]) -> None:
    """A sweep file takes it, and no rate is missing that one rank has."""
    assert sweep_from_mapping({"name": "calibrated", "machine": machine}).machine is not None
    assert None not in machine.values()
    assert {"flops", "memory_bandwidth", "operator_latency"} <= machine.keys()
    assert 0 < machine.get("attained", 1.0) <= 1


@pytest.mark.soak
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_calibrate_measures_this_machine(zbench, ranks):
    machine = zbench("doctor", "--calibrate", "--world-size", ranks, "--json").document["machine"]
    check_machine(machine)
    assert ("link_bandwidth" in machine) == (ranks == "2")
