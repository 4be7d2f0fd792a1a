"""The doctor starts real processes, names every engine, and fails only where trials cannot run."""

import json

import pytest

from zbench.launch import doctor


@pytest.fixture(scope="module")
def checks(tmp_path_factory, shared_processes):
    """Return the report of this machine."""
    with pytest.MonkeyPatch.context() as patch:
        shared_processes.lend_by(patch)
        return {check.name: check for check in doctor.examine(tmp_path_factory.mktemp("results"))}


def test_two_ranks_meet(checks):
    assert checks["two ranks"].status == "ok"


def test_kernels_engines_and_bandwidth_are_named(checks):
    assert checks["native kernels"].status == "ok"
    assert "scalar" in checks["native kernels"].text
    assert checks["engine builtin"].text == "usable"
    assert {f"engine {name}" for name in ("ddp", "zero_redundancy", "fsdp2", "deepspeed")} <= set(checks)
    assert float(checks["bandwidth"].text.split()[0]) > 0.1
    assert "exact" in checks["memory meter"].text
    assert checks["instructions"].text.startswith(("counted", "not counted: "))


def test_unwritable_results_directory_fails(zbench, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_trials", lambda: iter([]))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    said = zbench("doctor", "--json")
    document = json.loads(said.out)
    assert said.code == document["exit_code"] == 6
    (failed,) = [check for check in document["checks"] if check["status"] == "fail"]
    assert failed["name"] == "results"


def test_report_is_one_line_a_check(zbench, monkeypatch):
    monkeypatch.setattr(doctor, "_trials", lambda: iter([doctor.Check("two ranks", "ok", "met")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = zbench("doctor")
    assert said.code == 0
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[-1] == ["ok", "two", "ranks", "met"]
    assert any(word.startswith("OMP_NUM_THREADS") for line in lines for word in line)
