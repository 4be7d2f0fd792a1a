"""What a file may hold before it is no sweep file, at the bounds themselves."""

from pathlib import Path

import pytest

from zbench.errors import SpecError
from zbench.spec import document
from zbench.spec.document import Document, read_document, read_sweep_file
from zbench.spec.load import load_sweep


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
    with pytest.raises(SpecError, match="too large after its anchors are expanded"):
        read(tmp_path, "[&a [1], *a, *a]")


def test_a_file_may_be_nested_just_as_deep_as_is_allowed(tmp_path: Path) -> None:
    assert read(tmp_path, "[" * 50 + "1" + "]" * 50).data
    with pytest.raises(SpecError, match="too large"):
        read(tmp_path, "[" * 51 + "1" + "]" * 51)


def test_a_character_that_no_yaml_may_hold_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, "name: a\x01")
    assert error.value.message.startswith("not YAML: unacceptable character #x0001")
    assert "\n" not in error.value.message


def test_a_long_text_that_is_no_number_is_shown_by_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"cannot read '{'y' * 40}'; quote it if it is text"):
        read(tmp_path, f"steps: !!int {'y' * 50}")


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
    path.write_bytes(b"name: long".ljust(4 << 20))
    assert read_document(path).data == {"name": "long"}
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


def test_blocks_are_merged_over_a_base_but_axes_replaced(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "name: base\nengine: {dtype: float32, optimizer: {lr: 1, eps: 2}}\n"
        "axes: {zero_stage: [0, 1], lr: {low: 1, high: 2}}\n"
    )
    (tmp_path / "own.yaml").write_text(
        "extends: base.yaml\nengine: {optimizer: {lr: 3}}\naxes: {lr: {values: [1]}}\n"
    )
    assert read_sweep_file(tmp_path / "own.yaml").data == {
        "engine": {"dtype": "float32", "optimizer": {"lr": 3, "eps": 2}},
        "axes": {"zero_stage": [0, 1], "lr": {"values": [1]}},
    }
