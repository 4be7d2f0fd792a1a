"""Which bytes of a large file count, and which imported modules are the user's own."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests import making
from zbench.record.inputs import digest, inputs

MIB, BLOCK = 1 << 20, 1 << 16


def test_a_digest_has_16_hex_digits(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"text")
    assert len(digest(tmp_path / "text")) == 16


@pytest.mark.parametrize(("size", "time_counts"), [(64 * MIB, False), (64 * MIB + 1, True)])
def test_up_to_64_mib_the_contents_alone_count(tmp_path: Path, size: int, time_counts: bool) -> None:
    file = tmp_path / "weights"
    file.touch()
    os.truncate(file, size)  # sparse
    found = set()
    for second in (1, 2):
        os.utime(file, (second, second))
        found.add(digest(file))
    assert len(found) == (2 if time_counts else 1)


@pytest.mark.parametrize(
    ("offset", "counts"),
    [
        (0, True),
        (BLOCK - 1, True),
        (BLOCK, False),
        (2 * MIB - 1, False),
        (2 * MIB, True),
        (62 * MIB + BLOCK - 1, True),
        (124 * MIB + BLOCK, False),
        (126 * MIB - 1, False),
        (126 * MIB, True),
        (126 * MIB + BLOCK - 1, True),
    ],
)
def test_of_a_larger_file_64_evenly_spaced_places_of_64_kib_count(
    tmp_path: Path, offset: int, counts: bool
) -> None:
    file = tmp_path / "weights"
    file.touch()
    os.truncate(file, 126 * MIB + BLOCK)
    os.utime(file, (1, 1))
    before = digest(file)
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(b"x")
    os.utime(file, (1, 1))
    assert (digest(file) != before) == counts


def test_python_files_beside_zbench_are_the_users_own(tmp_path: Path) -> None:
    assert str(Path(making.__file__).resolve()) in inputs([], tmp_path)


def test_modules_without_source_and_those_that_installed_packages_make_are_not_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in (("fast", "fast.so"), ("json.made", "made.py"), ("mine", "mine.py")):
        (tmp_path / file).write_text("x = 1\n")
        module = ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
    found = inputs([], tmp_path)
    assert [name for name in found if not Path(name).is_absolute()] == ["mine.py"]
    assert str(Path.cwd()) not in found, "a module without a file is no folder"
