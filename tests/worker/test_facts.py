"""What `doctor` says of an engine is what `plan` says of its trials, or what its import says."""

import sys
from pathlib import Path

import pytest

from zbench.spec import peers
from zbench.spec.engine import EngineSpec
from zbench.worker.facts import engine_problem


def test_an_engine_that_is_not_installed_is_told_in_the_words_of_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    said = engine_problem("deepspeed")
    assert said == "deepspeed is not installed; run `pip install deepspeed` or set engine: builtin"
    engine = EngineSpec.model_validate({"engine": "deepspeed", "zero_stage": 2})
    assert ("engine.engine", said) in list(peers.peer_conflicts(engine))


def test_an_engine_whose_package_does_not_import_is_not_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deepspeed.py").write_text("raise ImportError('built for another torch')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    assert "built for another torch" in (engine_problem("deepspeed") or "")


@pytest.mark.parametrize("name", ["builtin", "ddp", "fsdp2", "zero_redundancy"])
def test_torchs_own_are_usable(name: str) -> None:
    assert engine_problem(name) is None
