"""Which interpreter a trial's ranks run under, and how a trial server is started with it."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import zbench
from zbench.launch import foreign
from zbench.spec.environments import Environment, executable, extensions_directory, lendable
from zbench.spec.peers import elsewhere
from zbench.spec.trial import TrialSpec

_ROOT = Path(__file__).parents[2]
_INSTALLED = _ROOT.name in ("site-packages", "dist-packages")
_LEADS_ASTRAY = ("PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")


def interpreter_of(trial: TrialSpec, base_dir: Path) -> Path | None:
    """Return the interpreter of a trial's ranks; None for the running one."""
    written = trial.engine.engine_python
    if trial.workload.command is not None:  # the command itself runs there; its watcher runs here
        return None
    return None if written is None else executable(written, base_dir)


def environment_facts(trial: TrialSpec, base_dir: Path) -> dict[str, str]:
    """Return interpreter and versions that a trial ran under, for its record; nothing for the running one."""
    engine = trial.engine
    if engine.engine_python is None:
        return {}
    if trial.workload.command is not None:
        return {"path": str(executable(engine.engine_python, base_dir))}
    found = elsewhere(engine.engine, engine.engine_python, base_dir)
    return found.facts() if isinstance(found, Environment) else {}


def server_command(python: Path | None) -> list[str]:
    """Return the command that is the trial server, without its arguments."""
    if python is None:
        return [sys.executable, "-P", "-m", "zbench.launch.server"]
    known = {"zbench": list(zbench.__path__), "lent": lendable()}
    return [str(python), "-P", foreign.__file__, json.dumps(known)]


def server_environment(python: Path | None, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a trial server; under the running interpreter they lead to this zbench.

    Another environment compiles its extensions in a place of its own: two versions of DeepSpeed would replace
    one another's in torch's.
    """
    if python is not None:
        kept = {key: value for key, value in inherited.items() if key not in _LEADS_ASTRAY}
        path = os.pathsep.join([str(python.parent), inherited.get("PATH", os.defpath)])
        return {"TORCH_EXTENSIONS_DIR": str(extensions_directory(python, inherited))} | kept | {"PATH": path}
    if _INSTALLED:
        return dict(inherited)
    paths = (str(_ROOT), inherited.get("PYTHONPATH"))
    return dict(inherited) | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
