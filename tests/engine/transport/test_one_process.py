"""Parts of the transport that one process shows: the store's texts, groups that fit, its folder."""

import stat
from pathlib import Path
from typing import cast

import pytest
from torch.distributed import Store

from zbench.engine.transport.agreement import RankMessages
from zbench.engine.transport.hybrid import check_shard_group_size
from zbench.engine.transport.peers import PeerListener
from zbench.errors import UsageError


class LateStore:
    """A store that says of each key a few times that it is not there yet."""

    def __init__(self, texts: dict[str, bytes], times: int) -> None:
        self._texts = texts
        self._left = dict.fromkeys(texts, times)

    def check(self, keys: list[str]) -> bool:
        (key,) = keys
        self._left[key] = self._left.get(key, 0) - 1
        return key in self._texts and self._left[key] < 0

    def get(self, key: str) -> bytes:
        return self._texts[key]


def test_a_text_that_comes_late_is_waited_for() -> None:
    store = LateStore({"topic/0": b"mine", "topic/1": b"late"}, times=3)
    assert RankMessages(0, 2, cast(Store, store)).read("topic", 60.0) == {0: "mine", 1: "late"}


def test_a_text_that_does_not_come_is_not_waited_for_without_end() -> None:
    store = LateStore({"topic/0": b"mine"}, times=0)
    assert RankMessages(0, 2, cast(Store, store)).read("topic", 0.0) == {0: "mine"}


@pytest.mark.parametrize("size", [0, 3, 8])
def test_shard_groups_that_do_not_fill_the_world_are_refused_with_those_that_do(size: int) -> None:
    with pytest.raises(UsageError, match=rf"divides the 4 ranks into equal groups \(1, 2, 4\), got {size}"):
        check_shard_group_size(size, 4)
    for fits in (1, 2, 4):
        check_shard_group_size(fits, 4)


def test_no_other_user_can_connect_to_a_rank_and_nothing_is_left_behind() -> None:
    listener = PeerListener(0, 2, 20.0)
    folder = Path(listener.name).parent
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IRWXU
    listener.close()
    assert not folder.exists()
