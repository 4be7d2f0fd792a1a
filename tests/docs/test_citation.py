"""CITATION.cff says what the package says of itself."""

from pathlib import Path

from ruamel.yaml import YAML

import zbench


def test_the_citation_is_of_this_version_and_of_no_person() -> None:
    citation = YAML(typ="safe").load(Path(__file__).parents[2] / "CITATION.cff")
    assert citation["version"] == zbench.__version__
    assert all(author.keys() == {"name"} for author in citation["authors"])
