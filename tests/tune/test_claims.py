"""A point is one trial's, whoever asks and however many at once."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from zbench.tune.claims import Claims, MemoryClaims, SqlClaims


@pytest.fixture(params=["memory", "sql"])
def claims(request: pytest.FixtureRequest, tmp_path: Path) -> Claims:
    if request.param == "memory":
        return MemoryClaims()
    return SqlClaims(create_engine(f"sqlite:///{tmp_path}/claims.db"), study=1)


def test_the_first_has_it_and_keeps_it(claims: Claims) -> None:
    assert claims.take("p", 1, lost=())
    assert not claims.take("p", 2, lost=())
    assert claims.take("p", 1, lost=()), "asking again for what one has is no conflict"
    assert claims.take("q", 2, lost=())


def test_the_claim_of_a_lost_trial_passes_to_one_other(claims: Claims) -> None:
    assert claims.take("p", 1, lost=())
    assert claims.take("p", 5, lost={1})
    assert not claims.take("p", 6, lost={1}), "it is 5's now, and 5 is not lost"
    assert not claims.take("p", 1, lost={1})


def test_studies_do_not_share_claims(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/claims.db")
    assert SqlClaims(engine, 1).take("p", 1, lost=())
    assert SqlClaims(engine, 2).take("p", 1, lost=())
    assert not SqlClaims(engine, 1).take("p", 2, lost=())


def test_of_many_at_once_one_wins_each_point(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/claims.db"
    SqlClaims(create_engine(url), 1).take("lost", 0, lost=())
    won: dict[str, list[int]] = {}
    barrier = threading.Barrier(6)

    def race(trial: int) -> None:
        mine = SqlClaims(create_engine(url, connect_args={"timeout": 30}), 1)
        barrier.wait()
        for point in [*map(str, range(20)), "lost"]:
            if mine.take(point, trial, lost={0}):
                won.setdefault(point, []).append(trial)

    _run_all([lambda trial=trial: race(trial) for trial in range(1, 7)])  # type: ignore[misc]
    assert {point: len(trials) for point, trials in won.items()} == dict.fromkeys(
        [*map(str, range(20)), "lost"], 1
    )


def _run_all(targets: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
