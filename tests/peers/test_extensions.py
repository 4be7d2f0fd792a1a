"""Locks of extension builds: those that no process holds go, others stay."""

from pathlib import Path

import pytest

from zbench.peers.extensions import remove_abandoned_locks


@pytest.mark.parametrize("by", ["TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "HOME"])
def test_an_abandoned_lock_of_an_extension_is_removed(
    by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    below = {
        "TORCH_EXTENSIONS_DIR": "",
        "XDG_CACHE_HOME": "torch_extensions",
        "HOME": ".cache/torch_extensions",
    }
    abandoned, held = (tmp_path / below[by] / "py_cpu" / name / "lock" for name in ("killed", "building"))
    variables = {by: str(tmp_path)}
    assert remove_abandoned_locks(variables) == []
    for lock in (abandoned, held):
        lock.parent.mkdir(parents=True)
        lock.touch()
    with held.open():
        assert remove_abandoned_locks(variables) == [abandoned.resolve()]
    assert held.exists()
    assert not abandoned.exists()
