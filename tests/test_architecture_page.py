"""The pages of the architecture are true: their example runs, and the functions on their ways exist."""

import re
from pathlib import Path
from typing import Any

import pytest

from zbench.engine.assembly.stages import STAGES

ROOT = Path(__file__).parents[1]
PAGES = ("ARCHITECTURE.md", "docs/engine-internals.md")
TEXT = "\n".join((ROOT / page).read_text() for page in PAGES)
WAYS = [
    "A comparison's way from two runs to the verdict line",
    "A gradient's way from hook to Adam",
    "`zero_stage`'s way from the sweep file to the table",
    "A trial's way from the sweep to a rank",
    "A record's way back to the printed table",
]


def steps(way: str) -> str:
    """Return the numbered list under the title of a way."""
    after = TEXT.split(f"**{way}**", 1)[1]
    return "\n".join(re.findall(r"^\d+\. .*(?:\n   .*)*", after.split("\n**", 1)[0], flags=re.MULTILINE))


def located(name: str) -> Path:
    """Return the file or folder that the page calls `name`."""
    paths = [
        folder / name for folder in (ROOT / "zbench", ROOT / "zbench" / "engine") if (folder / name).exists()
    ]
    assert paths, f"the architecture names {name}, which does not exist"
    return paths[0]


def test_the_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    seen: dict[str, Any] = {}
    exec(example, seen)
    assert seen["info"].grad_norm > 0


@pytest.mark.parametrize("way", WAYS)
def test_the_functions_on_a_way_exist(way: str) -> None:
    named = re.findall(r"`([\w/]+(?:\.py|/))`: `([\w.]+)`", steps(way))
    assert len(named) >= 5
    for name, function in named:
        place = located(name)
        sources = [place] if place.is_file() else list(place.glob("*.py"))
        method = function.rpartition(".")[2]
        assert any(re.search(rf"(?:def |    ){method}\b", source.read_text()) for source in sources), (
            name,
            function,
        )


def test_the_table_is_the_stage_table() -> None:
    rows = re.findall(r"^\| (\d) \| `(\w+)` \| `(\w+)` \| `(\w+)` \| `(\w+)` \|$", TEXT, flags=re.MULTILINE)
    written = {int(number): types for number, *types in rows}
    assert written == {
        number: [
            s.parameters.__name__,
            s.gradients.name,
            s.sums.name,
            s.optimizer_state.__name__,
        ]
        for number, s in STAGES.items()
    }
