"""A small git repository whose every revision is a package named zbench that prints a document."""

import json
import subprocess
from pathlib import Path

from tests.analysis.synthetic import saved, trial
from zbench.record import lines

BACKEND = '''
"""A build backend without requirements: zips the package, so that no test needs a network."""
import pathlib, zipfile

def build_wheel(directory, config_settings=None, metadata_directory=None):
    name = "zbench-0.0.0-py3-none-any.whl"
    info = "zbench-0.0.0.dist-info/"
    with zipfile.ZipFile(pathlib.Path(directory) / name, "w") as wheel:
        for file in pathlib.Path("zbench").rglob("*.py"):
            wheel.write(file)
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: zbench\\nVersion: 0.0.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
'''
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "zbench"
version = "0.0.0"
"""
COMMAND = """
import sys

if __name__ == "__main__":
    print({document!r})
    sys.exit({code})
"""


def git(repository: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout.strip()


def commit(repository: Path, tag: str, document: object, code: int = 0) -> None:
    """Commit a zbench whose every command prints `document`."""
    text = document if isinstance(document, str) else json.dumps(document)
    (repository / "zbench" / "cli" / "main.py").write_text(COMMAND.format(document=text, code=code))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", tag)
    git(repository, "tag", tag)


def sweep_document(step_s: float) -> dict[str, object]:
    return {"schema_version": 1, "trials": [lines.jsonable(saved(item)) for item in trial([step_s])]}
