"""What a trial read of the user's own files."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch  # noqa: F401 - a module of its own making is not the user's

from tests import making
from zbench.record.inputs import digest, inputs


def test_beyond_64_mib_the_time_of_the_last_change_counts(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.touch()
    for size, different in ((64 << 20, 1), ((64 << 20) + 1, 2)):
        os.truncate(file, size)  # sparse
        digests = set()
        for second in (1, 2):
            os.utime(file, (second, second))
            digests.add(digest(file))
        assert len(digests) == different


def test_modules_of_the_user_are_read_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    for name in ("project/mine", "project/unused", "beside"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    installed = tmp_path / "project" / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "theirs.py").write_text("")
    before = {*inputs([], tmp_path / "project")}  # what the suite itself has imported
    for name, file in {
        "mine": tmp_path / "project" / "mine.py",
        "beside": tmp_path / "beside.py",
        "theirs": installed / "theirs.py",
        "native": tmp_path / "project" / "native.so",
        "torch.compiled": tmp_path / "project" / "unused.py",  # torch writes modules, too
    }.items():
        module = ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "odd", 7)  # anything may stand there
    (tmp_path / "project" / "native.so").touch()
    (tmp_path / "project" / "text").write_text("text")
    files = inputs([tmp_path / "project" / "text", tmp_path / "gone"], tmp_path / "project")
    mine = {name: value for name, value in files.items() if name not in before}
    others = {tmp_path / "beside.py", tmp_path / "gone"}
    assert {*mine} == {"mine.py", "text", *map(str, others)}
    assert mine["mine.py"] == mine[str(tmp_path / "beside.py")] == digest(tmp_path / "beside.py")
    assert mine[str(tmp_path / "gone")] == "removed"


def test_python_files_beside_zbench_are_the_users_own(tmp_path: Path) -> None:
    assert str(Path(making.__file__).resolve()) in inputs([], tmp_path)
