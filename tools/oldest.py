"""Print the oldest promised version of each dependency, as constraints for pip.

    python tools/oldest.py >oldest.txt && PIP_CONSTRAINT=oldest.txt make test

Reads the lower bounds in pyproject.toml, of what zbench needs itself; standard library only.
"""

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def oldest(path: Path = PYPROJECT) -> list[str]:
    """Return `NAME==VERSION` of each dependency; ValueError for one without a lower bound."""
    pins = []
    for requirement in tomllib.loads(path.read_text())["project"]["dependencies"]:
        match = re.match(r"([\w.-]+?)>=([\d.]+)", requirement)
        if match is None:
            raise ValueError(f"{requirement}: no lower bound")
        pins.append(f"{match[1]}=={match[2]}")
    return pins


if __name__ == "__main__":
    print("\n".join(oldest()))
