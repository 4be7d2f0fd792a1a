"""Hjson is read as DeepSpeed reads it, and a mistake names its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.errors import UsageError
from zbench.spec.document import MAX_DEPTH
from zbench.spec.foreign.hjson import read_foreign


def read(text: str, place: Path, name: str = "ds.json") -> Any:
    (place / name).write_text(text)
    return read_foreign(place / name)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ('{"a": [1, 2,], // two\n "b": {}}', {"a": [1, 2], "b": {}}),
        ("{a: 1 # one\n b: true\n c: null /* none */ }", {"a": 1, "b": True, "c": None}),
        ("{\n  device: cpu\n  ratio: 5e-1\n}", {"device": "cpu", "ratio": 0.5}),
        ("{a: 'it''s'}", None),
        ("{a: 5e8 elements}", None),
        ("{a: '''one\n two''', b: '''''', c: 1}", {"a": "one\ntwo", "b": "", "c": 1}),
        ("[1, [], {}, -0.5e+2, two\n]", [1, [], {}, -50.0, "two"]),
        (
            "a: 01\nb: 5e8 elements\nc: 1 # one\n\"d\": ''\n",
            {"a": "01", "b": "5e8 elements", "c": 1, "d": ""},
        ),
    ],
)
def test_comments_loose_commas_and_bare_words_are_read(text: str, data: Any, tmp_path: Path) -> None:
    if data is None:
        with pytest.raises(UsageError, match=r"ds\.json:1: neither JSON nor Hjson"):
            read(text, tmp_path)
    else:
        assert read(text, tmp_path) == data


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{"a": 1', 1, "expected '}' before the end of the file"),
        ('{\n"a": }', 2, "expected a value, got '}'"),
        ('{"a" 1}', 1, "expected a colon after the key 'a'"),
        ('{"a": 1, "a": 2, }', 1, "the key 'a' is given twice; remove one of them"),
        ('{"a": "x', 1, "a quote has no end on its line"),
        ("{}\n}", 2, "expected the end of the file, got '}'"),
    ],
)
def test_a_mistake_names_its_line(text: str, line: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read(text, tmp_path, "ds.hjson")
    told = f"ds.hjson:{line}: neither JSON nor Hjson: {message}; correct the syntax"
    assert str(refused.value) == f"{tmp_path}/{told}"


@pytest.mark.parametrize(("before", "opening", "closing"), [("", "{a: ", "\n}"), ("", "[", "]")])
def test_what_nests_deeper_than_a_sweep_may_is_refused(
    before: str, opening: str, closing: str, tmp_path: Path
) -> None:
    most = MAX_DEPTH - bool(before)
    assert read(before + opening * most + "1" + closing * most, tmp_path, "ds.hjson")
    with pytest.raises(UsageError, match="nested too deeply"):
        read(before + opening * (most + 1) + "1" + closing * (most + 1), tmp_path, "ds.hjson")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.dictionaries(st.text(), VALUES), st.booleans())
def test_every_json_document_is_the_same_in_hjson(
    tmp_path_factory: pytest.TempPathFactory, data: Any, indented: bool
) -> None:
    text = json.dumps(data, indent=2 if indented else None)
    assert read(text, tmp_path_factory.getbasetemp(), "ds.hjson") == data
