"""What a file may hold before it is no sweep file, at the bounds themselves."""

from pathlib import Path

import pytest

from zbench.errors import SpecError
from zbench.spec import document
from zbench.spec.document import Document, read_document


def read(tmp_path: Path, text: str) -> Document:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return read_document(path)


def test_a_file_may_have_just_as_many_nodes_as_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "MAX_NODES", 5)
    assert read(tmp_path, "[[1, 2], 3]").data == [[1, 2], 3]
    with pytest.raises(SpecError, match="too large"):
        read(tmp_path, "[[1, 2], 3, 4]")
    with pytest.raises(SpecError, match="too large once its anchors are filled in"):
        read(tmp_path, "[&a [1], *a, *a]")


def test_a_file_may_be_nested_just_as_deep_as_is_allowed(tmp_path: Path) -> None:
    deepest = document.MAX_DEPTH
    assert read(tmp_path, "[" * deepest + "1" + "]" * deepest).data
    with pytest.raises(SpecError, match="too large"):
        read(tmp_path, "[" * (deepest + 1) + "1" + "]" * (deepest + 1))
