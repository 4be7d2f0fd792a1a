"""Repeats are interleaved, every one comes once, and the order follows from the seed."""

from hypothesis import given
from hypothesis import strategies as st

from zbench.launch.order import interleaved, shuffled


@given(st.integers(0, 20), st.integers(1, 5), st.integers(0, 99))
def test_each_repeat_of_all_comes_before_the_next(count, repeats, seed):
    order = list(interleaved(range(count), repeats=repeats, seed=seed))
    assert [repeat for _, repeat in order] == sorted(repeat for _, repeat in order)
    assert sorted(order) == [(item, repeat) for item in range(count) for repeat in range(repeats)]


def test_order_follows_from_seed_and_round():
    items = list(range(50))
    assert shuffled(items, seed=1, round_number=0) == shuffled(items, seed=1, round_number=0)
    assert shuffled(items, seed=1, round_number=0) != shuffled(items, seed=1, round_number=1)
    assert shuffled(items, seed=1, round_number=0) != shuffled(items, seed=2, round_number=0)
    assert shuffled(items, seed=1, round_number=0) != items
    assert items == list(range(50))


def test_no_item_is_first_in_every_round():
    firsts = {shuffled(range(4), seed=0, round_number=n)[0] for n in range(40)}
    assert firsts == {0, 1, 2, 3}
