"""A folder whose contents are run is this user's alone, up to the root, or it is not used."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.errors import UsageError
from zbench.private import cache_directory, private_cache, private_directory


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o700, 0o2700])
def test_a_private_folder_is_used_with_any_group_bit(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "cache"
    assert private_directory(folder, "") == folder
    assert mode_of(folder) == 0o700
    folder.chmod(mode)
    assert private_directory(folder, "") == folder


def is_readable(folder: Path) -> None:
    folder.chmod(0o755)


def is_in_a_folder_of_a_group(folder: Path) -> None:
    folder.parent.chmod(0o2775)


def is_in_a_folder_for_all(folder: Path) -> None:
    folder.parent.parent.chmod(0o777)


def is_a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def is_a_file(folder: Path) -> None:
    folder.rmdir()
    folder.touch()


@pytest.mark.parametrize(
    "spoil",
    [is_readable, is_in_a_folder_of_a_group, is_in_a_folder_for_all, is_a_link, is_a_file],
    ids=lambda f: f.__name__,
)
def test_a_folder_that_others_reach_is_refused_with_the_remedy(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    folder = tmp_path / "above" / "parent" / "cache"
    private_directory(folder, "")
    spoil(folder)
    with pytest.raises(UsageError, match="do this") as refusal:
        private_directory(folder, "do this")
    assert str(folder) in str(refusal.value)


def test_a_shared_temporary_folder_may_lie_above_it(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert private_directory(shared / "mine", "") == shared / "mine"


def test_the_cache_closes_a_folder_that_others_could_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cache_directory("environments")
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    assert private_cache("environments") == folder
    assert mode_of(folder) == 0o700
    folder.chmod(0o775)
    with pytest.raises(UsageError, match="remove it, or name another cache by XDG_CACHE_HOME"):
        private_cache("environments")
