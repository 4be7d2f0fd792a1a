"""Runs schedules in forks of this process: to learn which waits they reach, or without one of these."""

import importlib
import json
import os
import pkgutil
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import zbench.engine
from tests.engine.far_memory.cases import Case, run
from tests.engine.far_memory.lattice import check, schedule
from tests.engine.far_memory.units import CHECKS
from tests.engine.far_memory.wait_sites import Site, count, functions, remove, sites
from tests.engine.ranks import RankPool

AT_ONCE = 4
PATIENCE = 900.0  # seconds for one wait; on a quiet machine its schedules take a few


def import_engine() -> None:
    """Import all that the engine consists of, and what it imports when it is first used."""
    for module in pkgutil.walk_packages(zbench.engine.__path__, "zbench.engine."):
        importlib.import_module(module.name)
    importlib.import_module("torch._dynamo")
    torch.set_num_threads(1)
    functions()  # here, and not in each fork


def reached(seeds: Sequence[int]) -> dict[str, list[int]]:
    """Return key of a wait -> the seeds whose schedules reach it, on some rank."""

    def work() -> dict[str, list[int]]:
        count(list(sites()), _reached.add)
        found: dict[str, list[int]] = {site.key: [] for site in sites()}
        pool = _pool()
        for seed in seeds:
            case = schedule(seed)
            answers = pool.run(case.world_size, f"{__name__}:reached_here", [case])
            for key in sorted({key for of_rank in answers for key in of_rank}):
                found[key].append(seed)
        return found

    return dict(_in_a_fork(work, patience=PATIENCE + 10.0 * len(seeds)))


_reached: set[str] = set()


def reached_here(group: dist.ProcessGroup, cases: Sequence[Case]) -> list[str]:
    """Run cases on this rank; return the keys of the waits that they reached."""
    _reached.clear()
    run(group, cases)
    return sorted(_reached)


def noticed(site: Site, seeds: Sequence[int]) -> str:
    """Return what fails without a wait ("" if nothing does): the model of streams, or a schedule."""

    def work() -> str:
        remove(site)
        for unit in CHECKS:
            if error := _error_of(unit):
                return f"{unit.__name__}: {error}"
        pool = _pool()
        for begin in range(0, len(seeds), AT_ONCE):
            some = {seed: schedule(seed) for seed in seeds[begin : begin + AT_ONCE]}
            if error := _error_of(lambda some=some: check(pool, list(some.values()))):  # type: ignore[misc]
                named = [seed for seed, case in some.items() if str(case) in error] or some
                return f"schedule {'/'.join(map(str, named))}: {shortened(error)}"
        return ""

    try:
        return str(_in_a_fork(work, PATIENCE))
    except EndedError as error:
        return str(error)


def shortened(error: str) -> str:
    """Return what failed without the case; of a rank's traceback, the error and where it was raised."""
    first, *more = error.splitlines()
    if not more:
        return first.partition(" at Case(")[0]
    raised = next((line for line in more if line[:1] not in ("", " ") and line != _TRACEBACK), "")
    places = re.findall(r'File ".*?([^/"]+)", line (\d+), in (\w+)', error)
    where = " ({}:{}, {})".format(*places[-1]) if places else ""
    return f"{first} {raised}{where}"


_TRACEBACK = "Traceback (most recent call last):"


def _error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except BaseException as error:
        return str(error).strip() or type(error).__name__
    return ""


def _pool() -> RankPool:
    pool = RankPool(3, timeout=150.0, context=get_context("fork"), grace=20.0)
    pool.run(3, f"{__name__}:reached_here", [])  # before this process computes references
    return pool


class EndedError(Exception):
    """A fork came to no end, or to its end without an answer."""


def _in_a_fork(work: Callable[[], Any], patience: float) -> Any:
    """Return what `work` returns in a fork, all of whose processes are ended then."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "told.json"
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setsid()
            sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
            try:
                told = {"answer": work()}
            except BaseException as error:
                told = {"error": f"{type(error).__name__}: {error}"}
            file.write_text(json.dumps(told))
            os._exit(0)
        ended, deadline = 0, time.monotonic() + patience
        try:
            while not ended and time.monotonic() < deadline:
                time.sleep(0.05)
                ended, _ = os.waitpid(child, os.WNOHANG)
        finally:
            with suppress(ProcessLookupError):  # its ranks, too
                os.killpg(child, signal.SIGKILL)
        if not ended:
            os.waitpid(child, 0)
            raise EndedError(f"no end after {patience:.0f} s")
        if not file.exists():
            raise EndedError("the process died")
        told = json.loads(file.read_text())
        if "error" in told:
            raise RuntimeError(told["error"])
        return told["answer"]
