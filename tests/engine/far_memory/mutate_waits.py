"""Removes each wait of the engine in turn and runs far-memory schedules: one of them must fail.

    python -m tests.engine.far_memory.mutate_waits                # every wait
    python -m tests.engine.far_memory.mutate_waits masters kinds  # in files whose path has one of the words

The rows of `results/benchmarks/waits.md` are written anew, one for each wait that was tried. One that no
schedule misses needs a reason in `waits.py`, and is else `survived`: the exit code is 1 then.

The working tree is not touched: the functions of a fork of this process get other code.
"""

import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

import zbench.engine
from tests.engine.far_memory.cases import Case
from tests.engine.far_memory.lattice import CHOSEN, ROWS, check, drawn
from tests.engine.far_memory.units import CHECKS
from tests.engine.far_memory.wait_sites import ROOT, Site, functions, remove, sites
from tests.engine.far_memory.waits import REASONS
from tests.engine.ranks import RankPool

PAGE = ROOT / "results" / "benchmarks" / "waits.md"
SCHEDULES = [*CHOSEN, *(drawn(seed) for seed in range(3 * len(ROWS)))]
MOST_KEPT = 8  # schedules that are tried for a wait that has a reason
PATIENCE = 900.0  # seconds for one wait; on a quiet machine its schedules take a few


def noticed(site: Site, schedules: Sequence[Case]) -> str:
    """Return what fails without a wait ("" if nothing does): the model of streams, or a schedule."""

    def work() -> str:
        remove(site)
        for unit in CHECKS:
            if error := _error_of(unit):
                return f"{unit.__name__}: {error}"
        pool = RankPool(3, timeout=150.0, context=get_context("fork"), grace=20.0)
        for case in schedules:
            if error := _error_of(lambda case=case: check(pool, [case])):  # type: ignore[misc]
                return f"seed {case.seed}: {error.partition(' at Case(')[0].splitlines()[-1]}"
        return ""

    return _in_a_fork(work)


def _error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except BaseException as error:
        return str(error).strip() or type(error).__name__
    return ""


def _in_a_fork(work: Callable[[], str]) -> str:
    """Return what `work` returns in a fork, all of whose processes are ended then."""
    context = get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(work, sending))
    process.start()
    sending.close()
    try:
        return str(receiving.recv()) if receiving.poll(PATIENCE) else f"no end after {PATIENCE:.0f} s"
    except EOFError:
        return "the process died"
    finally:
        with suppress(ProcessLookupError):  # its ranks, too
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()


def _answer(work: Callable[[], str], sending: Connection) -> None:
    os.setsid()
    sending.send(work())


def row(site: Site, failure: str) -> tuple[str, str]:
    """Return a wait's verdict, and its row of the page."""
    reason = REASONS.get(site.key, "")
    verdict = "caught" if failure else "kept" if reason else "survived"
    name, _, text = site.key.partition(" ")
    says = " ".join((failure or reason).split()).replace("|", "\\|")[:160]
    return verdict, f"| {name} `{text}` | {verdict} | {says} |"


def page_rows() -> dict[str, str]:
    """Return the rows of the page by their waits' keys."""
    rows = PAGE.read_text().partition("|---|---|---|\n")[2].splitlines()
    return {text.removeprefix("| ").partition("` | ")[0].replace(" `", " ", 1): text for text in rows}


def main() -> int:
    """Print a line for each wait; return 1 if one survived without a reason."""
    for module in pkgutil.walk_packages(zbench.engine.__path__, "zbench.engine."):
        importlib.import_module(module.name)
    importlib.import_module("torch._dynamo")
    torch.set_num_threads(1)
    functions()  # here, and not in each fork
    words, survived = sys.argv[1:] or [""], 0
    for site in sites():
        if any(word in site.name for word in words):
            schedules = SCHEDULES[:MOST_KEPT] if REASONS.get(site.key) else SCHEDULES
            verdict, text = row(site, noticed(site, schedules))
            survived += verdict == "survived"
            print(text, flush=True)
            rows = page_rows() | {site.key: text}
            head, line, _ = PAGE.read_text().partition("|---|---|---|\n")
            there = [rows[one.key] for one in sites() if one.key in rows]
            PAGE.write_text(head + line + "\n".join(there) + "\n")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
