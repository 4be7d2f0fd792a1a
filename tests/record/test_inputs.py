"""What a trial read of the user's own files."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch  # noqa: F401 - a module of its own making is not the user's

from zbench.record import inputs as under_test
from zbench.record.inputs import changed, digest, inputs


def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    found = set()
    for content in (b"a" * 100, b"a" * 101, b"b" + b"a" * 99, b"a" * 99 + b"b", b""):
        (tmp_path / "text").write_bytes(content)
        found.add(digest(tmp_path / "text"))
    assert len(found) == 5


def test_of_a_large_file_the_time_of_its_last_change_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_WHOLE", 10)
    monkeypatch.setattr(under_test, "_BLOCK", 4)
    file = tmp_path / "text"
    found = set()
    for content, second in ((b"a" * 10, 1), (b"a" * 10, 2), (b"a" * 11, 3), (b"a" * 11, 4), (b"b" * 11, 4)):
        file.write_bytes(content)
        os.utime(file, (second, second))
        found.add(digest(file))
    assert len(found) == 4, "of the small one the contents alone count"


def test_modules_of_the_users_own_are_read_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    for name in ("project/mine", "project/unused", "beside"):
        (tmp_path / f"{name}.py").write_text("x = 1\n")
    installed = tmp_path / "project" / ".venv" / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "theirs.py").write_text("")
    made = ModuleType("torch.compiled")
    made.__file__ = str(tmp_path / "project" / "unused.py")
    monkeypatch.setitem(sys.modules, "torch.compiled", made)
    monkeypatch.setitem(sys.modules, "odd", 7)  # anything may stand there
    (tmp_path / "project" / "text").write_text("text")
    before = {*inputs([], tmp_path / "project")}  # what the suite itself has imported
    for file in (tmp_path / "project" / "mine.py", tmp_path / "beside.py", installed / "theirs.py"):
        module = ModuleType(file.stem)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, file.stem, module)
    found = inputs([tmp_path / "project" / "text", tmp_path / "gone"], tmp_path / "project")
    mine = {name: value for name, value in found.items() if name not in before}
    assert {*mine} == {"mine.py", "text", str(tmp_path / "beside.py"), str(tmp_path / "gone")}
    assert mine["mine.py"] == mine[str(tmp_path / "beside.py")] == digest(tmp_path / "beside.py")
    assert mine[str(tmp_path / "gone")] == "not there any more"
    assert not any("zbench/record" in name or "pathlib" in name for name in found)


def test_what_only_one_of_two_trials_read_has_not_changed() -> None:
    assert changed({"a": "1", "b": "1", "c": "1"}, {"b": "2", "a": "2", "c": "1", "d": "1"}) == ["a", "b"]
