"""`zbench compare --paired` works however zbench is installed: from an sdist, from a wheel, and with uv."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.launch.revisions.conftest import git, make_their_project

ROOT = Path(__file__).parents[2]
SWEEP = """
name: theirs
workload: {model: "their_model:Net", data: {synthetic: true}, sequence_length: 8, micro_batch_size: 1}
run: {world_size: 1, threads_per_rank: 1, device: cpu, warmup_steps: 1, steps: 2}
"""
MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens, targets):
        return nn.functional.cross_entropy(self.head(self.embed(tokens)).flatten(0, 1), targets.flatten())
"""


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the sdist, and from it the wheel, by pip and the project's own build backend."""
    place = tmp_path_factory.mktemp("archives")
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(place)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    (sdist,) = place.glob("*.tar.gz")
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(place), str(sdist)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (wheel,) = place.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


def installed(place: Path, archive: Path) -> Path:
    """Return the interpreter of a new environment with this zbench and the packages that are here."""
    venv.EnvBuilder(symlinks=True).create(place)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)}))
    here = [path for path in sys.path if path.endswith("site-packages")]
    # plain paths: no import hook of ours comes along
    (site / "shared.pth").write_text("\n".join(here) + "\n")
    python = place / "bin" / "python"
    words = ["--python", str(python), "install", "-q", "--no-deps", "--no-build-isolation", str(archive)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    return python


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository with a project, whose second commit doubles the model's width."""
    path = tmp_path / "theirs"
    path.mkdir()
    make_their_project(path)
    (path / "sweep.yaml").write_text(SWEEP)
    git(path, "init", "-q", "-b", "main")
    for width in ("16", "32"):
        (path / "their_model.py").write_text(MODEL.replace("WIDTH", width))
        git(path, "add", ".")
        git(path, "commit", "-q", "-m", width)
    return path


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("kind", "uses_uv"), [("sdist", False), ("wheel", False), ("wheel", True)])
def test_two_revisions_are_compared(
    archives: dict[str, Path], tmp_path: Path, repository: Path, kind: str, uses_uv: bool
) -> None:
    if uses_uv and shutil.which("uv") is None:
        pytest.skip("uv is not here")
    python = installed(tmp_path / "environment", archives[kind])
    folders = os.environ["PATH"].split(":")
    path = ":".join(folder for folder in folders if uses_uv or not (Path(folder) / "uv").exists())
    environment = {"PATH": path, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(place: Path, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            list(map(str, command)), cwd=place, env=environment, capture_output=True, text=True, check=False
        )

    words = ("--paired", "--sweep", "sweep.yaml", "--blocks", "0", "--json")
    done = run(repository, python.parent / "zbench", "compare", "HEAD~1", "HEAD", *words)
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)["trials"]
    grown = {one["metric"] for one in row["exact"] if one["answer"] == "regression"}
    assert {"peak_device_bytes", "flops"} <= grown, "each side ran its own checkout"
    assert (row["base"]["verdict"], row["head"]["verdict"]) == ("identical", "identical")
    source = run(tmp_path, python, "-P", "-c", "import zbench; print(zbench.__file__)").stdout
    assert source.startswith(str(tmp_path / "environment")), "it is the installed zbench that ran"
