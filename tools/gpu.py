"""Runs everything that needs a CUDA device: at most 25 minutes; a part that has passed is not run again.

    python -m tools.gpu [FLAG...]                # installs like `make dev`; FLAG: of tools.benchmarks.gpu
    python -m tools.gpu --wheels DIR [FLAG...]   # without a package index: from wheels in DIR, into build/gpu
    python -m tools.gpu download DIR             # on a machine with a package index: fills DIR, 40 MB

With --wheels the calling Python shares its packages with build/gpu: torch, numpy, scipy, pytest, typer, rich,
psutil, safetensors, jinja2 and matplotlib. gcc must be on the path. results/benchmarks/gpu.md has the parts.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / "build" / "gpu"
PACKAGES = [
    "nvidia-ml-py", "pydantic", "optuna>=5,<6", "ruamel.yaml", "hypothesis", "cmake", "ninja",
    "scikit-build-core>=0.10", "pybind11>=2.13",
]  # fmt: skip
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17, 5)), "manylinux2014_x86_64"]


def call(*words: str | Path) -> None:
    """Run a command in the repository; the program ends with its exit code if it fails."""
    code = subprocess.run(words, cwd=ROOT, check=False).returncode
    if code:
        sys.exit(code)


def download(folder: Path, version: str) -> None:
    """Fill a folder with wheels for a Python `version`. numpy is left out: the GPU machine has it."""
    words = ["--quiet", "--only-binary=:all:", f"--python-version={version}", f"--dest={folder}"]
    words += [f"--platform={platform}" for platform in PLATFORMS]
    call(sys.executable, "-m", "pip", "download", *words, *PACKAGES)
    for wheel in folder.glob("numpy-*.whl"):
        wheel.unlink()


def install_wheels(wheels: Path) -> Path:
    """Make `build/gpu` of the wheels and of this Python's packages, if it is older than the sources.

    Returns its interpreter.
    """
    python, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    sources = [ROOT / "pyproject.toml", *(path for path in ROOT.glob("csrc/**/*") if path.is_file())]
    if stamp.exists() and stamp.stat().st_mtime > max(path.stat().st_mtime for path in sources):
        return python
    call(sys.executable, "-m", "venv", "--without-pip", ENVIRONMENT)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = ENVIRONMENT / "lib" / version / "site-packages"
    (packages / "given.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    call(*pip, f"--find-links={wheels}", *PACKAGES)
    call(*pip, "--no-build-isolation", "--no-deps", "-e", ".")
    stamp.touch()
    return python


def main() -> None:
    """Do what is asked for; exit codes are those of `tools.benchmarks.gpu`."""
    begun = time.time()
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # flags of tools.benchmarks.gpu pass as they are
    )
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install from these wheels alone")
    parser.add_argument("--python-version", default="3.12", help="for which `download` chooses wheels [3.12]")
    given, flags = parser.parse_known_args()
    if flags[:1] == ["download"]:
        if len(flags) != 2:
            parser.error("download: expected one folder, such as `python -m tools.gpu download wheels`")
        download(Path(flags[1]), given.python_version)
        return
    if given.wheels:
        python = install_wheels(given.wheels.absolute())
    else:
        venv = os.environ.get("VENV", ".venv")
        call("make", f"VENV={venv}", f"PYTHON={sys.executable}", f"{venv}/.installed-test")
        python = ROOT / venv / "bin" / "python"
    call(python, "-m", "tools.benchmarks.gpu", f"--since={begun}", *flags)


if __name__ == "__main__":
    main()
