"""Measure the tests of one package by mutation: what share of seeded faults do they notice?

    python tools/mutate.py verify spec --mutants 200 [--seed 0] [--tests tests/verify]
                           [--json FILE] [--minutes 12] [--again]

A fault changes one comparison, arithmetic operator, boolean or constant of one source file. Each is judged by
the tests of its own package only (`tests/PACKAGE`, or the paths after `--tests`), stopped at the first
failure. One warm process per package imports what its tests import, but for the project's own modules, then
forks a child per fault, so a fault costs the import of the package's modules and its tests. Processes that
tests start get the fault, too.

All tests run once without a fault, traced: their seconds and the functions that each calls are kept beside
`--json` (FILE.tests.json) until a test file changes. Then all run in a judging process without a fault: a
test that fails there would notice every fault, so it judges none, and is named. A fault is judged by the
tests that call its function, the quickest first, then by the others in their files (`Tests.judges`). A test
that takes 20 seconds and ten times as long as without a fault has noticed it.

Exit code 1 if less than `--at-least` of the faults were noticed; 3 if `--minutes` were over first: the same
command goes on from `--json`. `--again` judges once more the faults that survived, after tests were
written. Faults that change no behaviour are listed, with the reason, in tools/equivalent_mutants.txt as
`PATH:SOURCE LINE -> CHANGE  # why`, and not counted.

Ray is imported before a test can set its environment: where its tests are to judge, call this with
RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 RAY_USAGE_STATS_ENABLED=0.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from judging import Control, Judges, SameExamples, Tests, record
from mutants import ROOT, Mutant, install, mutants_of

EQUIVALENT = ROOT / "tools" / "equivalent_mutants.txt"
HOOK = ROOT / "tools" / "mutation_hook"  # its sitecustomize gives a test's own processes the fault, too
VARIABLE = "ZBENCH_MUTANT"
SHIM = "zbench.measure.shim"  # counts allocations if imported before torch: first, so unjudged itself
OFF = [word for name in ("cacheprovider", "randomly", "xdist") for word in ("-p", f"no:{name}")]
PLAIN = ["-q", *OFF, "--no-header"]
_RAN = 100  # a fork's exit status is that of what it ran and this: 0 is a fork that a fault ended
_FIRST = 20  # tests that are collected alone, since most faults do not survive them
NOTICED, SURVIVED, TIMEOUT = "noticed", "survived", "timeout"


def in_a_fork(run: Callable[[], int], timeout: float, output: Path = Path(os.devnull)) -> int | None:
    """Return the exit status of `run` in a fork of this process, or None if it hangs."""
    child = os.fork()
    if child == 0:
        os.setsid()
        _print_to(output)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HOOK), os.environ.get("PYTHONPATH", "")])
        status = 99
        with contextlib.suppress(BaseException):
            status = _RAN + run()
        os._exit(status)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) - _RAN
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def judge(mutant: Mutant, tests: dict[str, float]) -> str:
    """Return whether tests notice a fault: the first few of them, and if they do not, the others.

    tests: the seconds of each without a fault, in the order in which they are to run.
    """
    names = list(tests)
    for part in (names[:_FIRST], names[_FIRST:]):
        outcome = _judged(mutant, {name: tests[name] for name in part})
        if outcome != SURVIVED:
            return outcome
    return SURVIVED


def _judged(mutant: Mutant, tests: dict[str, float]) -> str:
    def run() -> int:  # 5: none of the tests exists any more
        os.environ[VARIABLE] = f"{mutant.path}:{mutant.index}"
        install(mutant.path, mutant.index)
        return _run_judges(tests, ["-x"])

    if not tests:
        return SURVIVED
    status = in_a_fork(run, 60 + 5 * sum(tests.values()))
    return TIMEOUT if status is None else SURVIVED if status in (0, 5) else NOTICED


def learn(files: Sequence[str], file: Path | None) -> Tests:
    """Return what is known of tests; run those of which nothing is; import here what all import of others."""
    known = Tests.load(file)
    if left := known.unknown(files):
        with tempfile.TemporaryDirectory() as folder:
            found = Path(folder) / "found"

            def run() -> int:
                tests = record(["-x", *PLAIN, *left])
                if tests is None:
                    return 1
                others = [name for name, it in list(sys.modules.items()) if not _own(name, it)]
                Tests(tests, others).save(found)
                return 0

            output = Path(folder) / "output"
            if in_a_fork(run, 3600, output) != 0:
                sys.exit(f"a test fails without a fault; mend it first:\n{output.read_text()}")
            new = Tests.load(found)
        known.tests |= new.tests
        known.imported = sorted({*known.imported, *new.imported})
        if file is not None:
            known.save(file)
    for name in [SHIM, *known.imported]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if control(known) and file is not None:
        known.save(file)
    return known


def control(known: Tests) -> bool:
    """Run in a judging process, without a fault, the tests that never were; say whether there were any."""
    untried = known.untried()
    if not untried:
        return False
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "sound"
        names.touch()
        in_a_fork(lambda: _run_judges(untried, [], Control(names)), 600 + 5 * sum(untried.values()))
        sound = set(names.read_text().splitlines())
    for name in untried:
        known.tests[name].is_sound = name in sound
        if name not in sound:
            print(f"judges nothing, fails here without a fault: {name}", flush=True)
    return True


def _run_judges(tests: dict[str, float], options: Sequence[str], *plugins: object) -> int:
    files = dict.fromkeys(name.split("::")[0] for name in tests)
    arguments = [*PLAIN, "--tb=no", *options, *files]
    return int(pytest.main(arguments, plugins=[SameExamples(), Judges(tests), *plugins]))


def _own(name: str, module: object) -> bool:
    """Say whether a module is the project's: a child has to import those itself."""
    file = getattr(module, "__file__", None)
    is_ours = name.split(".")[0] in ("zbench", "tests", "tools", "conftest")
    return is_ours or file is None or Path(file).is_relative_to(ROOT / "tests")


def _print_to(output: Path) -> None:
    file = os.open(output, os.O_RDWR | os.O_CREAT)
    for stream in (0, 1, 2):
        os.dup2(file, stream)


def test_files(tests: Sequence[str]) -> list[str]:
    """Return the test files in folders, relative to the root."""
    files: list[Path] = []
    for test in tests:
        place = ROOT / test
        files += sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
    return [str(file.relative_to(ROOT)) for file in files]


def sources(package: str) -> list[Path]:
    """Return the files of a package, or the one named file, but for the one that judges import first."""
    place = ROOT / "zbench" / package
    shim = ROOT / f"{SHIM.replace('.', '/')}.py"
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    return [file for file in files if file != shim]


def equivalent() -> set[str]:
    """Return the keys of faults that are known to change no behaviour."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return {line.rpartition("  # ")[0] for line in lines if line and not line.startswith("#")}


@dataclass
class Measurement:
    """The sample of one package, and what became of each of its faults so far, kept in a file."""

    package: str
    sample: list[Mutant]
    outcomes: dict[str, str]
    file: Path | None

    @classmethod
    def begin(cls, package: str, count: int, seed: int, file: Path | None) -> "Measurement":
        """Draw the sample; take over what an earlier run found of it.

        A fault's turn to be drawn follows from its own text and the seed: other code may change.
        """
        known = equivalent()
        everything = [m for path in sources(package) for m in mutants_of(path)]
        candidates = [m for m in everything if m.key not in known]
        sample = sorted(candidates, key=lambda m: hashlib.sha256(f"{seed}/{m.place}".encode()).digest())[
            :count
        ]
        earlier = json.loads(file.read_text()) if file is not None and file.exists() else {}
        return cls(package, sample, dict(earlier.get(package, {})), file)

    def found(self, outcome: str) -> list[Mutant]:
        """Return the faults of the sample with this outcome."""
        return [m for m in self.sample if self.outcomes.get(m.place) == outcome]

    def run(self, tests: Sequence[str], again: bool, longest: float, end: float) -> bool:
        """Judge what is not judged yet; return whether all is, at `end` (time.monotonic) at the latest.

        again: judge once more what survived. longest: seconds of a test that may judge.
        """
        open_ones = (None, SURVIVED) if again else (None,)
        left = [m for m in self.sample if self.outcomes.get(m.place) in open_ones]
        known = (
            learn(test_files(tests), self.file and self.file.with_suffix(".tests.json")) if left else Tests()
        )
        for number, mutant in enumerate(left, 1):
            if time.monotonic() > end:
                return False
            outcome = self.outcomes[mutant.place] = judge(mutant, known.judges(mutant, longest))
            self._save()
            if outcome != NOTICED:
                print(f"{outcome}: {mutant.path}:{mutant.number}: {mutant.change}: {mutant.line}", flush=True)
            print(f"{self.package}: {number}/{len(left)}", end="\r", file=sys.stderr, flush=True)
        return True

    def _save(self) -> None:
        if self.file is not None:
            earlier = json.loads(self.file.read_text()) if self.file.exists() else {}
            self.file.write_text(json.dumps(earlier | {self.package: self.outcomes}, indent=1) + "\n")


def main() -> int:
    """Measure the packages that are named, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="+", help="a folder of zbench/, or a file: spec, verify/verdict.py")
    parser.add_argument("--tests", nargs="+", help="tests that judge; default: tests/PACKAGE")
    parser.add_argument("--mutants", type=int, default=200, help="faults in the sample of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="judge once more what survived")
    parser.add_argument(
        "--longest", type=float, default=math.inf, help="leave out tests that take more seconds"
    )
    parser.add_argument("--at-least", type=float, default=0.92, help="share that must be noticed")
    parser.add_argument("--json", type=Path, help="file of outcomes, from which a later run goes on")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no fault after these")
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT)]
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.dont_write_bytecode = False  # a fault's module is compiled apart, everything else once

    total = caught = 0
    end = time.monotonic() + 60 * given.minutes
    for package in given.packages:
        tests = given.tests or [f"tests/{package.split('/')[0]}"]
        measured = Measurement.begin(package, given.mutants, given.seed, given.json)
        is_whole = measured.run(tests, given.again, given.longest, end)
        hung = len(measured.found(TIMEOUT))
        seen = len(measured.found(NOTICED)) + hung
        missed = len(measured.found(SURVIVED))
        print(f"{package}: {seen} of {seen + missed} noticed, {hung} of them by hanging")
        if not is_whole:
            return 3
        total = total + seen + missed
        caught = caught + seen
    return 0 if caught >= given.at_least * total else 1


if __name__ == "__main__":
    sys.exit(main())
