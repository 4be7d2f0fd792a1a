"""Whole files, in the shapes that projects publish: each is read right, or refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.keeping import check
from zbench.errors import UsageError
from zbench.spec import shapes
from zbench.spec.expand import expand
from zbench.spec.keys import leaves
from zbench.spec.load import sweep_from_mapping
from zbench.spec.starting import starting_sweep

FILES: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("files.yaml"))
KEPT = Path(__file__).parents[1] / "kept"
CHOICES: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).with_name("choices.yaml"))


@pytest.mark.parametrize("case", FILES, ids=lambda case: "-".join(list(case["file"])[:3]))
def test_a_public_file_is_read_right_or_refused(
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


def differences(file: dict[str, Any], place: Path) -> list[str]:
    """Return what a file changes in the first sweep, and its notes; or why it is refused."""
    (place / "given.json").write_text(json.dumps(file))
    try:
        started = starting_sweep(str(place / "given.json"), place)
    except UsageError as error:
        return [f"refused: {error}".replace(f"{place}/", "")]
    first = dict(leaves(starting_sweep(None, place).document))
    written = dict(leaves(started.document))
    lines = [f"{key}: {value}" for key, value in written.items() if first.get(key) != value]
    lines += [f"without {key}" for key in first.keys() - written.keys()]
    return [*sorted(lines), *(f"{note.effect}: {note.text}" for note in started.notes)]


def test_what_each_choice_of_another_tool_becomes_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "mistake", lambda model, base_dir: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # two ranks
    lines = []
    for number, case in enumerate([*FILES, *CHOICES]):
        place = tmp_path / str(number)
        for name, content in case.get("beside", {}).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(json.dumps(content))
        place.mkdir(exist_ok=True)
        found = (line.replace(f"{place}/", "") for line in differences(case["file"], place))
        lines += [f"== {json.dumps(case['file'])}", *found]
    check(KEPT / "foreign.txt", "\n".join(lines))
