"""Hjson is read as DeepSpeed reads it, and a mistake names its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.errors import UsageError
from zbench.spec.foreign.hjson import read_foreign


def read(text: str, place: Path, name: str = "ds.json") -> Any:
    (place / name).write_text(text)
    return read_foreign(place / name)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ('{"a": 1,}', {"a": 1}),
        ('{"a": [1, 2,], // two\n "b": {}}', {"a": [1, 2], "b": {}}),
        ("{a: 1 # one\n b: true\n c: null /* none */ }", {"a": 1, "b": True, "c": None}),
        ("{\n  device: cpu\n  ratio: 5e-1\n}", {"device": "cpu", "ratio": 0.5}),
        ("stage: 2\nbf16: {enabled: false}", {"stage": 2, "bf16": {"enabled": False}}),
        ("{a: 'it''s'}", None),
        ("{a: 'one \"two\"', b: '''\n  lines\n  '''}", {"a": 'one "two"', "b": "lines"}),
        ("{a: 5e8 elements}", None),
    ],
)
def test_comments_loose_commas_and_bare_words_are_read(text: str, data: Any, tmp_path: Path) -> None:
    if data is None:
        with pytest.raises(UsageError, match=r"ds\.json:1: neither JSON nor Hjson"):
            read(text, tmp_path)
    else:
        assert read(text, tmp_path) == data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1', r":1: .*before the end of the file"),
        ('{\n"a": }', r":2: .*expected a value"),
        ('{"a" 1}', r":1: .*expected a colon after the key 'a'"),
        ('{"a": 1, "a": 2, }', "'a' is given twice"),
        ('{"a": "x', "a quote has no end"),
        ("{}\n}", ":2: .*expected the end of the file"),
    ],
)
def test_a_mistake_names_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        read(text, tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES), st.booleans())
def test_every_json_document_is_the_same_in_hjson(
    tmp_path_factory: pytest.TempPathFactory, data: Any, indented: bool
) -> None:
    text = json.dumps(data, indent=2 if indented else None)
    assert read(text, tmp_path_factory.getbasetemp(), "ds.hjson") == data
