"""`module:callable` is looked for before anything runs, and its module is not imported."""

from pathlib import Path

import pytest

from zbench.spec.callables import mistake

SOURCE = """
raise RuntimeError("imported")
def make_model(): ...
if True:
    make_other = make_model
class Factory: ...
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with modules: plain, in a package, of an installed module's name (a file, and a folder that
    hides nothing), and some whose names their source does not tell.
    """
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "deep" / "inside").mkdir(parents=True)
    (tmp_path / "deep" / "__init__.py").touch()
    (tmp_path / "deep" / "inside" / "models.py").write_text(SOURCE)
    (tmp_path / "starred.py").write_text("from mine import *\n")
    (tmp_path / "lazy.py").write_text("def __getattr__(name): return print\n")
    (tmp_path / "broken.py").write_text("def :\n")
    (tmp_path / "dynamic.py").write_text("globals()['made'] = print\n")
    (tmp_path / "json.py").write_text(SOURCE)
    for folder in ("xml", "bare"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        *("mine:make_model", "mine:make_other", "mine:Factory.of_size", "deep.inside.models:make_model"),
        *("starred:anything", "lazy:anything", "broken:told_by_python_itself", "math:sqrt"),
        *("torch.nn:Linear", "zbench.workloads.zoo:build", "dynamic:made", "json:make_model"),
        *("xml.dom.minidom:parse", "email.made_on_import:make", "bare:anything"),
    ],
)
def test_nothing_speaks_against_what_may_be_there(name: str, place: Path) -> None:
    assert mistake(name, place) is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothere:make", "no module 'nothere' in"),
        ("nothere.deeper:make", "write nothere/deeper.py there"),
        ("mine:make_modle", "has no 'make_modle' (did you mean 'make_model'?); correct the name"),
        ("deep.outside:make", "no module 'deep.outside'"),
        ("mine.part:make", "no module 'mine.part'"),
        ("json:dumps", "has no 'dumps'"),
    ],
)
def test_what_is_not_there_is_one_message_with_its_remedy(name: str, said: str, place: Path) -> None:
    assert said in (mistake(name, place) or "")
