"""Where a rank is pinned, and a server that does not start."""

import os
from pathlib import Path

import pytest

from zbench.errors import ZbenchError
from zbench.launch.process import client
from zbench.launch.process.client import WarmServer


def test_a_server_that_starts_too_slowly_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a machine without a free core: "the trial server was killed twice while it started"."""
    (tmp_path / "endless.py").write_text("import time\n\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(client, "_START_SECONDS", 1.0)
    server = WarmServer(("endless",), tmp_path)
    with pytest.raises(ZbenchError, match=r"did not start within 1 s: other work keeps this machine busy"):
        server.wait_until_ready()
    assert server._process.returncode is not None, "nothing is left"
