"""Makes a virtual environment for each of several versions of DeepSpeed, to race and to verify them.

    python tools/deepspeed_environments.py [--into DIRECTORY] [--own-torch SPEC] [VERSION ...]

Each is DIRECTORY/deepspeed-VERSION (default: ~/.zbench/environments), where `environments:` of the shipped
sweeps finds it by that name. It shares the packages of the interpreter that runs this script, torch first of
all, so that versions differ in DeepSpeed alone; `--own-torch "torch==2.11.*"` installs one instead. An
environment that is there is left as it is. DeepSpeed's CPU optimizer is compiled here, once, where a compiler
is found, and not in a trial.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

VERSIONS = ("0.18.2", "0.18.3", "0.18.9", "0.19.8")
BUILD = ["setuptools<81", "wheel", "ninja"]
BESIDE = ["hjson", "einops", "msgpack", "py-cpuinfo"]
"""What DeepSpeed imports beside torch, numpy, packaging, psutil, pydantic and tqdm."""
USUAL = ["numpy", "packaging", "psutil", "pydantic>=2", "safetensors", "tqdm"]


def make(place: Path, version: str, own_torch: str | None) -> None:
    """Make one environment; a half-made one is removed again."""
    venv.EnvBuilder(symlinks=True, with_pip=True).create(place)
    try:
        install = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        if own_torch:
            subprocess.run([*install, own_torch, *USUAL], check=True)
        else:
            packages = sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)})
            own = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
            Path(packages, "shared.pth").write_text("\n".join(own) + "\n")
        subprocess.run([*install, *BUILD, *BESIDE], check=True)
        build = os.environ | {"DS_ACCELERATOR": os.environ.get("DS_ACCELERATOR", "cpu")}
        if shutil.which("c++") or shutil.which("g++"):
            build |= {"DS_BUILD_CPU_ADAM": "1", "DS_BUILD_SHM_COMM": "1"}
        build["PATH"] = os.pathsep.join([str(place / "bin"), os.environ.get("PATH", os.defpath)])
        # A cached wheel may be one without the compiled optimizer.
        deepspeed = ["--no-cache-dir", "--no-build-isolation", "--no-deps", f"deepspeed=={version}"]
        subprocess.run([*install, *deepspeed], check=True, env=build)
    except (subprocess.CalledProcessError, KeyboardInterrupt):
        shutil.rmtree(place)
        raise


def main() -> int:
    """Make what is missing; the status is that of the first installation that fails."""
    parser = argparse.ArgumentParser(description="Make virtual environments of several DeepSpeed versions.")
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--into", type=Path, default=Path.home() / ".zbench" / "environments")
    parser.add_argument("--own-torch", metavar="SPEC", help='install this torch, as "torch==2.11.*"')
    options = parser.parse_args()
    for version in options.versions:
        place = options.into.absolute() / f"deepspeed-{version}"
        if place.exists():
            print(f"{place}: there already")
            continue
        try:
            make(place, version, options.own_torch)
        except subprocess.CalledProcessError as error:
            print(f"{place}: pip failed; its message is above", file=sys.stderr)
            return error.returncode or 1
        print(f"{place}: DeepSpeed {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
