"""Memory of a tree of processes, sampled from outside."""

import threading
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from zbench.measure import tree
from zbench.measure.tree import TreeMemory
from zbench.record.record import MemoryPeaks


def process(pid: int, uss: int, rss: int, *children: Any) -> Any:
    figures = SimpleNamespace(uss=uss, rss=rss)

    def descendants(*, recursive: bool) -> list[Any]:
        below = [one for child in children for one in child.children(recursive=True)]
        return [*children, *(below if recursive else [])]

    return SimpleNamespace(pid=pid, memory_full_info=lambda: figures, children=descendants)


@pytest.mark.parametrize(
    ("device", "driver", "peaks"),
    [
        (False, {}, (300, 0)),
        (True, {1: 3 << 20, 2: 5 << 20, 9: 70 << 20}, (5 << 20, 300)),
        (True, None, (300, 0)),
        (True, {9: 70 << 20}, (0, 300)),
    ],
    ids=["host", "driver", "no_driver", "another's"],
)
def test_each_figure_is_the_largest_of_any_sample(
    device: bool, driver: dict[int, int] | None, peaks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [
        process(1, 100, 700, process(2, 300, 400)),
        process(1, 200, 500, process(2, 150, 500, process(3, 100, 9))),
    ]
    rest = iter(samples)
    taken = threading.Event()

    def sample(pid: int) -> Any:
        root = next(rest, None)
        if root is None:  # it has ended
            taken.set()
            raise psutil.NoSuchProcess(pid)
        return root

    monkeypatch.setattr(tree, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(tree.psutil, "Process", sample)
    monkeypatch.setattr(tree, "bytes_by_process", lambda: driver)
    memory = TreeMemory(1, device=device)
    assert memory._thread.daemon, "it holds up no process that ends"
    assert taken.wait(60)
    assert memory.stop() == MemoryPeaks(*peaks, 700, {"process_tree": 450}, exact=False)
