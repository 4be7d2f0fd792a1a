"""The order of a round follows from the seed and the round alone."""

from zbench.launch.sweep import shuffled


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
