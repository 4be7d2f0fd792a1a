"""What a file may hold before it is no sweep file, at the bounds themselves."""

from pathlib import Path

import pytest

from zbench.errors import SpecError
from zbench.spec import document
from zbench.spec.document import Document, read_document
from zbench.spec.load import load_sweep


def read(tmp_path: Path, text: str) -> Document:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    return read_document(path)


def test_a_file_may_have_as_many_nodes_as_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_NODES", 5)
    assert read(tmp_path, "[[1, 2], 3]").data == [[1, 2], 3]
    with pytest.raises(SpecError, match="too large"):
        read(tmp_path, "[[1, 2], 3, 4]")
    with pytest.raises(SpecError, match="too large after its anchors are expanded"):
        read(tmp_path, "[&a [1], *a, *a]")


def test_a_character_that_no_yaml_may_hold_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, "name: a\x01")
    assert error.value.message.startswith("not YAML: unacceptable character #x0001")
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x81", "not UTF-8 text; this is no sweep file"),
        (b"a\0b", "not text (it holds NUL bytes); this is no sweep file"),
        (b"x" * (4 << 20) + b"y", "larger than 4 MiB; this is no sweep file"),
        (b"[" * 100_000, "nested too deeply; this is no sweep file"),
    ],
)
def test_files_that_are_no_text(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as raised:
        load_sweep(path, (), {})
    assert raised.value.message == message


def test_a_missing_file_and_a_directory(tmp_path: Path) -> None:
    told = r"none\.yaml: no such file; check the path; .*; quickstart, stages, tune or peers needs none$"
    with pytest.raises(SpecError, match=told):
        load_sweep(tmp_path / "none.yaml", (), {})
    with pytest.raises(SpecError, match="this is a directory; name a sweep file in it"):
        load_sweep(tmp_path, (), {})
