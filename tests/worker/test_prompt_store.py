"""Ranks meet through a file: as torch's own store does it, but without its sleeps of 10 ms."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from zbench.worker.failure import kind_of
from zbench.worker.prompt_store import PromptFileStore

PATIENT = timedelta(seconds=30)


def test_it_does_what_torchs_file_store_does_behind_a_prefix(tmp_path: Path) -> None:
    """As a process group uses it: torch's C++ calls what Python defines."""
    ours = dist.PrefixStore("of-a-group", PromptFileStore(str(tmp_path / "ours"), 1, PATIENT))
    theirs = dist.PrefixStore("of-a-group", dist.FileStore(str(tmp_path / "theirs"), 1))
    said = []
    for store in (ours, theirs):
        store.set("word", "spoken")
        store.set("other", b"\x00\xff")
        found = [store.get("word"), store.get("other"), store.add("count", 2), store.add("count", 3)]
        found += [store.check(["word", "count"]), store.check(["word", "absent"])]
        found += [store.compare_set("word", "spoken", "heard"), store.compare_set("word", "spoken", "lost")]
        found += [store.multi_get(["word", "other"]), store.delete_key("other"), store.check(["other"])]
        store.wait(["word"], timedelta(seconds=1))
        said.append(found)
    assert said[0] == said[1]
    assert ours.num_keys() > 0


def test_a_reader_waits_until_another_rank_has_written(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    reader, writer = PromptFileStore(path, 2, PATIENT), PromptFileStore(path, 2, PATIENT)
    threading.Timer(0.05, writer.set, ("late", "here")).start()
    assert reader.get("late") == b"here"


def test_a_wait_ends_with_an_error_that_counts_as_a_lost_peer(tmp_path: Path) -> None:
    store = PromptFileStore(str(tmp_path / "store"), 2, PATIENT)
    with pytest.raises(RuntimeError) as silent:
        store.wait(["never"], timedelta(milliseconds=30))
    assert kind_of(silent.value) == "peer_lost"
    store.set_timeout(timedelta(milliseconds=30))
    with pytest.raises(RuntimeError, match="never"):
        store.get("never")


def test_a_group_meets_through_it_and_its_words_outlive_who_wrote_them(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    sums: list[float] = []

    def join(rank: int) -> None:
        store = dist.PrefixStore("pg", PromptFileStore(path, 2, PATIENT))
        group = dist.ProcessGroupGloo(store, rank, 2, PATIENT)
        value = torch.tensor([rank + 1.0])
        group.allreduce([value]).wait()
        sums.append(float(value))
        store.set(f"words/{rank}", "the reason")

    ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert sums == [3.0, 3.0]
    later = dist.PrefixStore("pg", PromptFileStore(path, 2, PATIENT))
    assert later.get("words/0") == later.get("words/1") == b"the reason"
