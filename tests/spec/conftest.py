"""Sweep files for tests of the spec room."""

from collections.abc import Callable
from pathlib import Path

import pytest

from zbench.errors import ExitCode, SpecError
from zbench.spec.load import load_sweep
from zbench.spec.sweep import SweepSpec


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[..., SweepSpec]:
    """Write a sweep file and load it, with `--set` texts and environment variables."""

    def load(text: str, *settings: str, ending: str = "yaml", **environ: str) -> SweepSpec:
        path = tmp_path / f"sweep.{ending}"
        path.write_text(text)
        return load_sweep(path, settings, environ)

    return load


@pytest.fixture
def refusal(tmp_path: Path, loaded: Callable[..., SweepSpec]) -> Callable[..., str]:
    """Return the message of the SpecError that loading raises, with the directory cut out of it."""

    def refused(text: str, *settings: str, ending: str = "yaml", **environ: str) -> str:
        with pytest.raises(SpecError) as raised:
            loaded(text, *settings, ending=ending, **environ)
        assert raised.value.exit_code == ExitCode.USAGE
        return str(raised.value).replace(f"{tmp_path}/", "")

    return refused
