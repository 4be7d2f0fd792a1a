"""Settings of the whole suite."""

import gc
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]


def build_native() -> None:
    """Compile csrc/ again if a file has changed since `make dev`; workers of pytest-xdist come later."""
    stamp = Path(sys.prefix, ".installed-test")
    if "PYTEST_XDIST_WORKER" in os.environ or not stamp.exists():
        return
    if max(path.stat().st_mtime for path in ROOT.glob("csrc/**/*")) > stamp.stat().st_mtime:
        words = ["make", "--silent", f"VENV={sys.prefix}", f"PYTHON={sys.executable}", str(stamp)]
        if subprocess.run(words, cwd=ROOT, check=False).returncode:
            pytest.exit("csrc/ has changed and could not be compiled", returncode=2)


build_native()

import zbench.measure.shim  # noqa: E402, F401 - before torch, so that ranks can count allocated bytes
from tests.shared_processes import SharedProcesses  # noqa: E402 - imports the native core
from zbench import masking  # noqa: E402
from zbench.testing.ranks import ranks  # noqa: E402, F401 - a fixture: one pool for all packages

settings.register_profile("suite", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("suite")


def pytest_configure() -> None:
    """Take Ctrl-C and a hang-up as usual, also where a shell began the suite in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--shard K/N`: run the K-th of N parts of the suite, as the machines of a matrix do."""
    parser.addoption("--shard", default="1/1", metavar="K/N", help="run the K-th of N parts of the suite")


SLOW = ("engine", "worker", "cli", "launch", "verify", "docs", "estimate", "peers", "tune", "analysis")
"""Packages whose files take longest: workers that begin with them end together."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the files of other shards out, and put slow packages first if workers share the files."""
    shard, shards = map(int, config.getoption("--shard").split("/"))
    if shards > 1:
        items[:] = [item for item in items if zlib.crc32(item.location[0].encode()) % shards == shard - 1]
    if "PYTEST_XDIST_WORKER" in os.environ:
        rank = {package: place for place, package in enumerate(SLOW)}
        items.sort(key=lambda item: rank.get(package_of(item.nodeid), len(SLOW)))


def package_of(nodeid: str) -> str:
    """Return the package of a test or a file: `engine` of tests/engine/test_parity.py."""
    return nodeid.split("/")[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return a scheduler of files whose workers stay in a package.

    The first test of a package has ranks, servers and simulators import much: in few workers, not in each.
    A worker whose package has no file left takes the first package on which the fewest workers are.
    """
    from xdist.scheduler import LoadFileScheduling

    class Packages(LoadFileScheduling):
        def _assign_work_unit(self, node: Any) -> None:
            left = dict.fromkeys(map(package_of, self.workqueue))
            package = places.get(node)
            if package not in left:
                package = min(left, key=[*places.values()].count)
            places[node] = package
            file = next(file for file in self.workqueue if package_of(file) == package)
            self.workqueue.move_to_end(file, last=False)
            super()._assign_work_unit(node)

    places: dict[Any, str] = {}
    return Packages(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while modules are imported: that took a quarter of the time. Skip them later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Put the environment and the processors back after each test: RANK, say, changes later programs.

    The width that pytest-xdist gives its workers is forgotten: what is printed depends on it.
    """
    processors = os.sched_getaffinity(0)
    masking.forget()
    with mock.patch.dict(os.environ):
        os.environ.pop("COLUMNS", None)
        yield
    os.sched_setaffinity(0, processors)


@pytest.fixture(scope="session")
def shared_processes() -> Iterator[SharedProcesses]:
    """Trial servers and a simulator; `lend_by(monkeypatch)` gives them to what a test calls."""
    processes = SharedProcesses()
    yield processes
    processes.close()
