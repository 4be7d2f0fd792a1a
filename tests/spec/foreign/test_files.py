"""Whole files, in the shapes that projects publish: each is read right, or refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from zbench.errors import UsageError
from zbench.spec import shapes
from zbench.spec.expand import expand
from zbench.spec.keys import leaves
from zbench.spec.load import sweep_from_mapping
from zbench.spec.starting import starting_sweep

FILES: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("files.yaml"))


def test_there_are_sixty_files() -> None:
    assert len(FILES) >= 60


@pytest.mark.parametrize("case", FILES, ids=lambda case: "-".join(list(case["file"])[:3]))
def test_a_public_file_is_read_right_or_refused_with_its_reason(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "mistake", lambda model, base_dir: None)  # transformers takes seconds to ask
    file = tmp_path / "given.json"
    file.write_text(json.dumps(case["file"]))
    if "refused" in case:
        with pytest.raises(UsageError) as error:
            starting_sweep(str(file), tmp_path)
        assert case["refused"] in str(error.value)
        return
    started = starting_sweep(str(file), tmp_path)
    expansion = expand(sweep_from_mapping(started.document, environ={}))
    assert expansion.invalid == []
    trials = [dict(leaves(trial.model_dump(mode="json"))) for trial in expansion.trials]
    for key, expected in case["is"].items():
        values = [[trial[name] for name in trial if name.rpartition(".")[2] == key] for trial in trials]
        texts = {json.dumps(value) for of_trial in values for value in of_trial}
        options = expected if isinstance(expected, list) and key != "betas" else [expected]
        assert {json.dumps(option) for option in options} <= texts, (key, texts)
