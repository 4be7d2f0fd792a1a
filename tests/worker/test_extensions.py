"""A build that was killed leaves a lock that torch waits for forever; one that goes on keeps its lock."""

import os
from pathlib import Path

from torch.utils.file_baton import FileBaton

from zbench.peers.extensions import remove_abandoned_locks


def test_only_the_lock_that_nobody_holds_goes(tmp_path: Path) -> None:
    for name in ("killed", "building"):
        (tmp_path / "py311_cpu" / name).mkdir(parents=True)
    killed, building = (tmp_path / "py311_cpu" / name / "lock" for name in ("killed", "building"))
    gone, alive = FileBaton(str(killed)), FileBaton(str(building))
    assert gone.try_acquire()
    assert alive.try_acquire()
    os.close(gone.fd)  # as the kernel does for a process that is killed
    assert remove_abandoned_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == [killed]
    assert building.exists()
    assert not killed.exists()
    alive.release()
    assert remove_abandoned_locks({"XDG_CACHE_HOME": str(tmp_path / "nowhere")}) == []
