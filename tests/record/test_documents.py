"""A document that has changed by one bit is noticed, and every document that is none gets one message."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from zbench.errors import UsageError
from zbench.record.documents import create_durably, parsed, read_json, sealed

KIND = TypeAdapter(dict[str, Any])


@dataclass
class Tags:
    """A kind of document."""

    schema_version: int
    tags: dict[str, str]


VALUES = {"schema_version": 1, "name": "x", "numbers": [1, 2.5], "inner": {"a": None}}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_sealed_document_is_ordinary_json_and_comes_back(tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "document.json"
    file.write_bytes(sealed(VALUES, indent=indent))
    assert list(json.loads(file.read_text())) == ["digest", *VALUES]
    assert read_json(file, KIND, "") == VALUES


@pytest.mark.parametrize("indent", [None, 2])
def test_every_bit_that_flips_is_noticed(tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "document.json"
    whole = sealed(VALUES, indent=indent)
    for bit in random.Random(1).sample(range(8 * len(whole)), 400):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(UsageError, match=r"document\.json.*(;|, or) write it anew"):
            read_json(file, KIND, "write it anew")
    file.write_bytes(whole.replace(b'"x"', b'"y"'))
    with pytest.raises(UsageError, match=r"document\.json is damaged: it is not what zbench wrote"):
        read_json(file, KIND, "")


@pytest.mark.parametrize("length", [0, 40, -1])
def test_a_part_of_a_document_is_damaged(tmp_path: Path, length: int) -> None:
    file = tmp_path / "document.json"
    file.write_bytes(sealed(VALUES)[:length])
    with pytest.raises(UsageError, match="is damaged"):
        read_json(file, KIND, "")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schema_version": 1, "tags": 3}, "tags: Input should be a valid dictionary; remove it"),
        ({"schema_version": 99}, "written by a newer zbench"),
    ],
)
def test_another_document_is_refused_with_its_key(
    tmp_path: Path, document: dict[str, Any], words: str
) -> None:
    file = tmp_path / "document.json"
    file.write_bytes(sealed(document))
    with pytest.raises(UsageError, match=words):
        read_json(file, TypeAdapter(Tags), "remove it")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 200_000 + "]" * 200_000, "nested too deeply"),
        ("[1]", "expected a JSON object"),
        ("{", "not JSON, or incomplete"),
    ],
)
def test_what_is_no_object_gets_one_message(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"place: ({words})"):
        parsed(text, "place")


def created(path: Path, data: bytes) -> bool:
    """Create a file; say whether it was not there yet."""
    try:
        create_durably(path, data)
    except FileExistsError:
        return False
    return True


def test_one_of_several_writers_makes_the_new_file(tmp_path: Path) -> None:
    file = tmp_path / "new"
    texts = [b"%d" % number * 1000 for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        made = [*pool.map(lambda text: created(file, text), texts)]
    assert made.count(True) == 1
    assert file.read_bytes() == texts[made.index(True)]
    assert [*tmp_path.iterdir()] == [file]
