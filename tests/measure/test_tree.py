"""Memory of a tree of processes, sampled from outside."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from zbench.measure import tree
from zbench.measure.tree import TreeMemory
from zbench.record.record import MemoryPeaks


def process(pid: int, uss: int, rss: int, *children: Any) -> Any:
    figures = SimpleNamespace(uss=uss, rss=rss)
    return SimpleNamespace(pid=pid, memory_full_info=lambda: figures, children=lambda recursive: children)


@pytest.mark.parametrize("device", [False, True])
def test_each_figure_is_the_largest_of_any_sample(device: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = iter([process(1, 100, 700, process(2, 300, 400)), process(1, 200, 500, process(2, 250, 500))])
    driver = "1, 3\n2, 5\n9, 70\n2, [N/A]\n"
    monkeypatch.setattr(TreeMemory, "_watch", lambda self: None)
    monkeypatch.setattr(tree.psutil, "Process", lambda pid: next(samples))
    monkeypatch.setattr(tree.shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=driver))
    memory = TreeMemory(1, device=device)
    memory._sample()
    memory._sample()
    of_tree = {"process_tree": 450}
    expected = (5 << 20, 300, 700, of_tree) if device else (300, 0, 700, of_tree)
    assert memory.stop() == MemoryPeaks(*expected, exact=False)
