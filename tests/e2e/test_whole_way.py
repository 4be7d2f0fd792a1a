"""A new user's whole way, from a fresh installation to a trained step, outside the clone."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_whole_way_of_a_new_user() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("scikit_build_core", reason="the wheel is built without isolation")
    command = [sys.executable, "tools/whole_way.py", "--shared"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "trained a step in FSDP2" in done.stdout
