"""Which study is whose, and which worker still lives."""

import datetime
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from zbench.errors import UsageError
from zbench.tune.identity import StudyIdentity, Worker, started_after_boot

from .fakes import small_sweep

NOW = datetime.datetime.now()
LONG_AGO = NOW - datetime.timedelta(days=1)


def test_a_sweep_survives_its_study() -> None:
    identity = StudyIdentity(small_sweep())
    assert StudyIdentity.of_study(identity.to_json(), "s").sweep == identity.sweep


def test_a_sweeps_digest_is_12_hex_digits_whatever_the_order_of_its_axes() -> None:
    axes = small_sweep().axes
    digest = StudyIdentity(small_sweep(axes=axes)).digest
    assert len(bytes.fromhex(digest)) == 6
    assert StudyIdentity(small_sweep(axes=dict(reversed(axes.items())))).digest == digest


def test_another_way_of_searching_is_the_same_study() -> None:
    identity = StudyIdentity(small_sweep(search={"method": "random", "trials": 5}))
    identity.require_same(StudyIdentity(small_sweep()).to_json(), "s")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"axes": {"zero_stage": [0, 1]}}, "axes"),
        ({"engine": {"overlap_comm": False}}, "engine"),
        ({"objective": {"minimize": "median_step_s"}}, "objective"),
        ({"name": "other"}, "searches another sweep"),
    ],
)
def test_another_sweeps_study_is_refused_with_what_differs(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named) as caught:
        StudyIdentity(small_sweep(**changes)).require_same(StudyIdentity(small_sweep()).to_json(), "s")
    assert "choose another name with --study" in str(caught.value)


@pytest.mark.parametrize("known", [None, {}, "text", {"schema_version": 1}])
def test_a_study_that_something_else_made_is_refused(known: object) -> None:
    with pytest.raises(UsageError, match="was not made by zbench"):
        StudyIdentity.of_study(known, "s")


def test_a_study_of_a_newer_zbench_is_refused() -> None:
    known = StudyIdentity(small_sweep()).to_json() | {"schema_version": 2}
    with pytest.raises(UsageError, match="newer zbench"):
        StudyIdentity.of_study(known, "s")


def test_this_process_lives_and_an_ended_one_does_not() -> None:
    me = Worker.here("f")
    assert not me.knows_to_be_gone(me.to_json(), LONG_AGO)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = me.to_json() | {"pid": child.pid, "started": started_after_boot(child.pid)}
    assert not me.knows_to_be_gone(theirs, NOW)
    child.kill()
    child.wait()
    assert me.knows_to_be_gone(theirs, NOW)


def test_a_process_id_used_again_is_another_process() -> None:
    me = Worker.here("f")
    assert me.knows_to_be_gone(me.to_json() | {"started": 1.0}, NOW)
    for apart in (2.0, 2.5):
        assert me.knows_to_be_gone(me.to_json() | {"started": me.started + apart}, NOW)


def test_a_clock_that_is_set_ends_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    me = Worker.here("f")
    boot = psutil.boot_time()
    for moved in (-1.0, 1.0, 7200.0):
        monkeypatch.setattr("psutil._psplatform.boot_time", lambda moved=moved: boot + moved)
        assert not me.knows_to_be_gone(me.to_json(), NOW)


def test_a_worker_that_ended_and_was_not_waited_for_is_gone() -> None:
    me = Worker.here("f")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = me.to_json() | {"pid": child.pid, "started": started_after_boot(child.pid)}
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert me.knows_to_be_gone(theirs, NOW)
    child.wait()


def test_workers_elsewhere_are_judged_by_heartbeats_or_by_age() -> None:
    elsewhere = {"place": "another host", "pid": 1, "started": 1.0}
    beating, silent = Worker.here("f", heartbeat=10.0), Worker.here("f", trial_seconds=60.0)
    assert not beating.knows_to_be_gone(elsewhere, LONG_AGO), "the storage knows better"
    assert silent.knows_to_be_gone(elsewhere, LONG_AGO)
    assert not silent.knows_to_be_gone(elsewhere, datetime.datetime.now())


@pytest.mark.parametrize(("seconds", "gone"), [(150.0, False), (180.5, True)])
def test_elsewhere_a_trial_may_take_twice_its_time_and_a_minute(seconds: float, gone: bool) -> None:
    elsewhere = {"place": "another host", "pid": 1, "started": 1.0}
    since = datetime.datetime.now() - datetime.timedelta(seconds=seconds)
    assert Worker.here("f", trial_seconds=60.0).knows_to_be_gone(elsewhere, since) == gone
    assert not Worker.here("f").knows_to_be_gone(elsewhere, LONG_AGO), "nobody knows how long a trial takes"


def test_a_trial_without_a_name_is_given_up_after_a_while() -> None:
    me = Worker.here("f")
    assert me.knows_to_be_gone(None, LONG_AGO)
    assert not me.knows_to_be_gone(None, datetime.datetime.now())
    assert not me.knows_to_be_gone(None, None)


@pytest.mark.parametrize(("seconds", "gone"), [(30.0, False), (60.5, True)])
def test_a_worker_has_a_minute_to_leave_its_name(seconds: float, gone: bool) -> None:
    since = datetime.datetime.now() - datetime.timedelta(seconds=seconds)
    assert Worker.here("f").knows_to_be_gone(None, since) == gone


def test_heartbeats_go_on_while_the_body_runs_and_survive_a_failure() -> None:
    beats: list[float] = []

    def beat() -> None:
        beats.append(time.monotonic())
        raise ConnectionError("away for a moment")

    with Worker.here("f", heartbeat=0.01).heartbeats(beat):
        deadline = time.monotonic() + 10
        while len(beats) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    count = len(beats)
    assert count >= 3
    time.sleep(0.05)
    assert len(beats) == count


def test_heartbeats_keep_no_process_from_ending() -> None:
    before = set(threading.enumerate())
    with Worker.here("f", heartbeat=60.0).heartbeats(lambda: None):
        (beating,) = set(threading.enumerate()) - before
        assert beating.daemon


def test_without_a_pace_there_are_no_heartbeats() -> None:
    with Worker.here("f").heartbeats(lambda: pytest.fail("beaten")):
        time.sleep(0.02)
