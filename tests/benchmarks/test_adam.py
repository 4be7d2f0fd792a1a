"""The Adam benchmark itself: fair turns, contenders that do the same work, a tiny run from end to end."""

import pytest
import torch

from tools.benchmarks import adam
from tools.benchmarks.adam_contenders import AdamPlace, Buffers, phase, plain

CPU = AdamPlace(torch.device("cpu"), 1)


def test_everyone_gets_the_same_number_of_turns_and_the_first_two_do_not_count() -> None:
    calls: list[str] = []
    seconds = adam.take_turns({name: lambda name=name: calls.append(name) for name in "abc"}, 5)
    assert [len(samples) for samples in seconds.values()] == [5, 5, 5]
    rounds = [calls[i : i + 3] for i in range(0, len(calls), 3)]
    assert len(rounds) == 7
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) > 1


@pytest.mark.parametrize("make", [plain, phase])
def test_every_contender_takes_the_same_step(make) -> None:
    """From the same state each ends at the same parameters, but for rounding: none leaves work out."""
    numel, ends = 1024, {}
    names = [name for name in make(Buffers(numel, CPU.device), CPU) if name != "bound"]
    for name in names:
        shared = Buffers(numel, CPU.device)
        with torch.no_grad():
            make(shared, CPU)[name]()
        assert not torch.equal(shared.param, torch.full((numel,), 0.01)), name
        ends[name] = (shared.param - 0.01, shared.exp_avg)
    update, moment = ends["zbench"]
    for name, (other, others_moment) in ends.items():
        assert torch.allclose(other, update, rtol=0.02, atol=0), name
        assert torch.allclose(others_moment, moment, rtol=0.02, atol=0), name


@pytest.mark.parametrize(("free", "sizes"), [(96_000, [1000, 2000]), (1 << 20, [1000, 4096]), (48, [1])])
def test_sizes_are_cut_to_what_fits_into_free_memory(free: int, sizes: list[int]) -> None:
    assert adam.fitting([1000, 4096], free) == sizes


def test_a_tiny_run_measures_all_tables_and_keeps_each() -> None:
    threads = torch.get_num_threads()
    counts = []
    document = adam.measure(
        [1000, 4096], [1], rounds=3, tensors=10, keep=lambda d: counts.append(len(d["tables"]))
    )
    torch.set_num_threads(threads)
    assert counts == [1, 2, 3, 4, 5, 6, 7]
    assert [part["table"] for part in document["tables"]] == [
        *(2 * ["plain", "phase", "phase_bf16_moments"]),
        "many",
    ]
    for part in document["tables"]:
        assert min(part["median_seconds"].values()) > 0
