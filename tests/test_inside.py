"""The file that runs inside other interpreters needs nothing that an old or a bare one lacks."""

import ast
import json
import subprocess
import sys
from pathlib import Path

from tests.test_architecture import outside
from zbench import _inside

FILE = Path(_inside.__file__)


def test_python_38_reads_it_with_the_standard_library_alone() -> None:
    ast.parse(FILE.read_text(), feature_version=(3, 8))
    assert outside(FILE, lazy=False) <= sys.stdlib_module_names


def test_an_environment_says_what_it_has() -> None:
    command = [sys.executable, "-E", str(FILE), "describe", "pydantic,errors,lacking", "console_scripts"]
    about = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert set(about["versions"]) == {"pydantic"}, "not what lies beside the file"
    assert about["python"] == list(sys.version_info[:3])
    assert "pytest" in about["plugins"]
