"""Which functions each test of a package calls, and its seconds: `mutate.py` orders tests by them."""

import ast
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from mutants import ROOT, Mutant
from tracer import VARIABLE, Tracer


@dataclass
class Test:
    """What one run of a test showed."""

    seconds: float
    calls: list[str]
    is_sound: bool | None = None  # passes in a judging process without a fault; None: not tried yet


@dataclass
class Tests:
    """What is known of a package's tests, by node ID, and what they import that is not the project's."""

    tests: dict[str, Test] = field(default_factory=dict)
    imported: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path | None) -> "Tests":
        """Return what an earlier run has written, but for test files that have changed since."""
        if file is None or not file.exists():
            return cls()
        known = json.loads(file.read_text())
        tests = {name: Test(**test) for name, test in known["tests"].items()}
        known["tests"] = {n: t for n, t in tests.items() if _digest(_file(n)) == known["digests"][_file(n)]}
        return cls(**known)

    def save(self, file: Path) -> None:
        """Write it all for a later run."""
        self.digests = {name: _digest(name) for name in {_file(test) for test in self.tests}}
        file.write_text(json.dumps(asdict(self), indent=0) + "\n")

    def untried(self) -> dict[str, float]:
        """Return the tests that no control run has tried yet, and their seconds."""
        return {name: test.seconds for name, test in self.tests.items() if test.is_sound is None}

    def unknown(self, files: Sequence[str]) -> list[str]:
        """Return the test files of which nothing is known."""
        known = {_file(test) for test in self.tests}
        return [name for name in files if name not in known]

    def judges(self, mutant: Mutant, longest: float = math.inf) -> dict[str, float]:
        """Return the tests that can notice a fault and their seconds, the likely and quick ones first.

        A fault in a function: the tests that call it, then the others in their files (they may share what a
        fixture made). Any other fault acts on import: those that use its module, then all other tests.
        longest: seconds of a test that is taken.
        """
        function = enclosing(mutant)
        users = {name for name, test in self.tests.items() if any(_is_in(c, mutant.path) for c in test.calls)}
        first = users if function is None else {n for n in users if function in self.tests[n].calls}
        files = {_file(name) for name in first}
        found = [n for n, test in self.tests.items() if test.is_sound and test.seconds <= longest]
        found = [n for n in found if function is None or _file(n) in files]
        found.sort(key=lambda name: (name not in first, self.tests[name].seconds))
        return {name: self.tests[name].seconds for name in found}


def _is_in(call: str, path: str) -> bool:
    return call.rpartition(":")[0] == path


def _file(test: str) -> str:
    return test.split("::")[0]


def _digest(path: str) -> str:
    file = ROOT / path
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""


class Recorder:
    """Plugin of pytest: notes the calls and the time of each test."""

    def __init__(self, tracer: Tracer, names: Path) -> None:
        self.tests: dict[str, Test] = {}
        self._tracer = tracer
        self._names = names.open()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Trace one test with its fixtures."""
        self._tracer.test[0] = len(self.tests) % 256
        begin = time.monotonic()
        self._tracer.start()
        try:
            return (yield)
        finally:
            self._tracer.stop()
            calls = self._names.readlines()
            seconds = time.monotonic() - begin
            self.tests[item.nodeid] = Test(seconds, sorted({call.strip() for call in calls}))


class SameExamples:
    """Plugin of pytest: hypothesis draws the same examples for every fault, shrinks none, and may be slow."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Change the settings of the suite."""
        phases = (Phase.explicit, Phase.generate)
        checks = list(HealthCheck)
        settings.register_profile(
            "judge", settings.default, derandomize=True, phases=phases, suppress_health_check=checks
        )
        settings.load_profile("judge")


class Judges:
    """Plugin of pytest: runs the tests that are named, in their order, each with a limit of its own time."""

    def __init__(self, tests: dict[str, float]) -> None:
        self._tests = tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Choose and order; whatever was collected in addition is left out."""
        turns = {name: turn for turn, name in enumerate(self._tests)}
        items[:] = sorted((item for item in items if item.nodeid in turns), key=lambda i: turns[i.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(20 + 10 * self._tests[item.nodeid]))


class Control:
    """Plugin of pytest: writes the name of each test that did not fail to a file."""

    def __init__(self, names: Path) -> None:
        self._failed: set[str] = set()
        self._names = names

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure of a test or of its fixtures; when the test is over, whether there was none."""
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown" and report.nodeid not in self._failed:
            with self._names.open("a") as file:
                file.write(f"{report.nodeid}\n")


def enclosing(mutant: Mutant) -> str | None:
    """Return the function whose body has the fault, as Tracer names it; None if the fault acts on import."""
    return _function(ast.parse((ROOT / mutant.path).read_text()).body, mutant, "")


def _function(body: Sequence[ast.AST], mutant: Mutant, prefix: str) -> str | None:
    for node in body:
        if isinstance(node, ast.ClassDef) and (
            found := _function(node.body, mutant, f"{prefix}{node.name}.")
        ):
            return found
        if isinstance(node, ast.FunctionDef) and _in_body(node, mutant.number):
            return f"{mutant.path}:{prefix}{node.name}"
    return None


def _in_body(node: ast.FunctionDef, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.end_lineno or 0)


def record(arguments: Sequence[str]) -> dict[str, Test] | None:
    """Run pytest; return what its tests called, or None if one failed."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test").write_bytes(b"\0")
        os.environ[VARIABLE] = folder
        recorder = Recorder(Tracer(Path(folder)), Path(folder) / "names")
        status = pytest.main([*arguments], plugins=[SameExamples(), recorder])
        return recorder.tests if status in (0, 5) else None  # 5: the files hold tests of the soak alone
