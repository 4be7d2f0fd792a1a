"""Tries whether `make test` notices each fault of tests/faults.toml.

    python -m tools.injected [NUMBER ...] [--revision REVISION] [--workers N] [--out FILE]

Each fault is applied to a fresh clone of REVISION [HEAD], and the tests run there against the clone's zbench,
nearest test file first, until the first failure. A fault in csrc/ is compiled first; all other clones use the
compiled files of the installed zbench, so install zbench anew after a change in csrc/. NUMBER counts the
faults of the file from 1; number 0 is the clone without a fault, in which no test may fail: try number 0
first. Exit status 1 if a test fails for number 0, or if fewer than 95% of the tried faults make a test fail.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAULTS = ROOT / "tests" / "faults.toml"
MIN_CAUGHT = 0.95  # of the tried faults: 57 of 60
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_OF_VENV = re.compile(r"python|pip|activate|Activate")  # `venv` writes these programs


@dataclass(frozen=True)
class Fault:
    """An edit of a file: `old`, which occurs exactly once, becomes `new`. notice: the damage to a user."""

    notice: str
    file: str
    old: str
    new: str

    def apply(self, tree: Path) -> None:
        """Edit the file of a tree."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise SystemExit(f"{self.file}: `old` occurs {count} times instead of once: {self.old}")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def call(*words: str | Path, cwd: Path = ROOT) -> str:
    """Return the standard output of a command that must succeed."""
    return subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, text=True, check=True).stdout


def clone(tree: Path, revision: str) -> None:
    """Clone a revision into a new folder; the objects of git stay in the repository."""
    call("git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, tree)
    call("git", "reset", "--quiet", "--hard", revision, cwd=tree)
    call("git", "remote", "remove", "origin", cwd=tree)
    with (tree / ".git" / "info" / "exclude").open("a") as file:
        file.write("*.so\n")


def add_compiled(tree: Path, scratch: Path, fault: Fault | None) -> None:
    """Put the compiled files beside the modules of a tree; compile them if the fault is in csrc/."""
    packages = Path(sysconfig.get_path("purelib"))
    if fault and fault.file.startswith("csrc/"):
        packages = scratch / "built"
        options = ("--quiet", "--no-build-isolation", "--no-deps", "--target", packages)
        call(sys.executable, "-m", "pip", "install", *options, tree)
        shutil.rmtree(tree / "build", ignore_errors=True)
    for path in packages.glob("zbench/*.so"):
        shutil.copy(path, tree / "zbench")


def interpreter(tree: Path, folder: Path) -> Path:
    """Return a Python whose zbench is the tree's, and whose other packages and programs are the installed."""
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    variables = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", variables))
    # Python ignores the .pth files of a folder that a .pth file adds: the installed zbench stays hidden.
    paths = (tree, sysconfig.get_path("purelib"))
    (packages / "tree.pth").write_text("".join(f"{path}\n" for path in paths))
    programs = folder / "bin"
    installed = Path(sysconfig.get_path("scripts"))
    for path in installed.iterdir():
        if _OF_VENV.match(path.name) or not path.is_file():
            continue
        first, _, body = path.read_bytes().partition(b"\n")
        if first.startswith(f"#!{installed}/python".encode()):
            (programs / path.name).write_bytes(f"#!{programs}/python\n".encode() + body)
            (programs / path.name).chmod(0o755)
        else:
            (programs / path.name).symlink_to(path)
    return programs / "python"


def test_files(tree: Path, python: Path) -> tuple[list[str], list[str]]:
    """Return the test files near the changed files of a tree, nearest first, and all further test files."""
    lines = call(python, "-m", "tools.quick", "--list", cwd=tree).splitlines()
    nearest = [line for line in lines if line.endswith(".py")]
    paths = [str(path.relative_to(tree)) for path in sorted(tree.glob("tests/**/test_*.py"))]
    return nearest, [path for path in paths if path not in nearest]


def first_failure(fault: Fault | None, revision: str, *options: str) -> str | None:
    """Return the first test that fails in a clone with a fault, or None; `options` are pytest's."""
    with tempfile.TemporaryDirectory(prefix="zbench-injected-") as folder:
        scratch = Path(folder)
        tree = scratch / "zbench"
        clone(tree, revision)
        if fault:
            fault.apply(tree)
        add_compiled(tree, scratch, fault)
        python = interpreter(tree, scratch / "venv")
        environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        nearest, further = test_files(tree, python)
        for files in (nearest, further) if nearest else (further,):  # a run imports all of its files first
            done = subprocess.run(
                [python, "-m", "pytest", "-x", "-q", *options, *files],
                cwd=tree,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                continue
            if failure := _FAILURE.search(done.stdout):
                return failure[1]
            raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-4000:]}")
    return None


def main() -> int:
    """Return 1 if a test fails without a fault, or if too few faults make a test fail."""
    faults = [Fault(**table) for table in tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]]
    parser = argparse.ArgumentParser(
        prog="python -m tools.injected",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    numbers = range(len(faults) + 1)
    parser.add_argument(
        "numbers", type=int, nargs="*", metavar="NUMBER", help=f"a fault, or 0 [1 to {len(faults)}]"
    )
    parser.add_argument("--revision", default="HEAD", metavar="REVISION", help="the tree to try [HEAD]")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="workers of pytest [2]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append a line of JSON for each fault")
    arguments = parser.parse_args()
    if unknown := [number for number in arguments.numbers if number not in numbers]:
        parser.error(f"no fault has the number {unknown[0]}: the numbers end at {len(faults)}")
    revision = call("git", "rev-parse", "--verify", f"{arguments.revision}^{{commit}}").strip()
    if failure := first_failure(None, revision, "--collect-only"):
        raise SystemExit(f"pytest cannot collect {failure} without a fault, at {revision}")
    options = ("-n", str(arguments.workers), "--dist", "loadfile", "--no-loadscope-reorder")
    caught: dict[int, str | None] = {}
    for number in arguments.numbers or numbers[1:]:
        fault = faults[number - 1] if number else None
        start = time.monotonic()
        caught[number] = first_failure(fault, revision, *options)
        seconds = round(time.monotonic() - start, 1)
        verdict = f"caught by {caught[number]}" if caught[number] else "MISSED"
        print(f"{number} {verdict}, {seconds} s", flush=True)
        if arguments.out:
            subject = {"file": fault.file, "notice": fault.notice} if fault else {}
            outcome = {"caught_by": caught[number], "seconds": seconds, "revision": revision}
            line = json.dumps({"number": number, **subject, **outcome})
            with arguments.out.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    sound = not caught.pop(0, None)
    total = sum(test is not None for test in caught.values())
    print(f"caught {total} of {len(caught)}")
    return 0 if sound and total >= MIN_CAUGHT * len(caught) else 1


if __name__ == "__main__":
    sys.exit(main())
