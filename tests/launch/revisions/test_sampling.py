"""A version is sampled by its public command line, once more where a sample was killed."""

import json
from pathlib import Path

import pytest

from zbench.errors import TrialsFailedError, UsageError
from zbench.launch.pair import Sampler
from zbench.launch.revisions import version_of

from .conftest import sweep_document


def sampler(place: Path, version: str, *settings: str) -> Sampler:
    """Return what takes samples of one version."""
    return Sampler({"base": version_of(version, lambda _: None)}, place / "sweep.yaml", settings)


@pytest.mark.parametrize(
    ("tag", "kind", "says"),
    [
        ("refusing", UsageError, r"refusing cannot run the sweep \(exit 2\): unknown key engine.x"),
        ("silent", TrialsFailedError, r"silent cannot run the sweep \(exit 70\)"),
    ],
)
def test_a_version_that_cannot_run_it(tag: str, kind: type[Exception], says: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=says):
        sampler(tmp_path, tag).take("base")


def test_a_sample_that_was_killed_is_taken_once_more(tmp_path: Path) -> None:
    stand_in, once = tmp_path / "python", tmp_path / "once"
    document = json.dumps(sweep_document(0.1))
    stand_in.write_text(
        f"#!/bin/sh\n[ -e {once} ] && {{ echo '{document}'; exit; }}\ntouch {once}\nkill -9 $$\n"
    )
    stand_in.chmod(0o755)
    assert len(sampler(tmp_path, str(stand_in)).take("base")) == 1
    stand_in.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(TrialsFailedError, match=r"exit -9"):
        sampler(tmp_path, str(stand_in)).take("base")
