"""What another user has put in the way runs nothing, is never read or written through, and blocks nobody."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.analysis.synthetic import trial, write_run
from zbench.analysis.sources import load_results
from zbench.engine.adam import nvrtc
from zbench.errors import UsageError
from zbench.job.calling import private_caches
from zbench.private import private_cache
from zbench.record.locks import DirectoryLock
from zbench.record.store import RunDirectory, load_records
from zbench.scratch import remove_abandoned, scratch_folder

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")
SECRET = "only mine"


@dataclass(frozen=True)
class Machine:
    """A shared temporary folder with a secret of the victim's in it, and two users."""

    shared: Path
    victim: int
    attacker: int

    @property
    def secret(self) -> Path:
        """The file that nothing of the victim's may write, and the attacker cannot."""
        return self.shared / "mine" / "secret"

    def folder(self, name: str, owner: int, mode: int = 0o755) -> Path:
        """Make a folder of a user."""
        path = self.shared / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        os.chown(path, owner, owner)
        return path

    def cached(self, name: str, owner: int, mode: int = 0o755) -> Path:
        """Make a folder of a user in the victim's own cache."""
        for above in ("cache", "cache/zbench"):
            self.folder(above, self.victim)
        return self.folder(f"cache/zbench/{name}", owner, mode)

    def results(self) -> Path:
        """Make a run that is the victim's, in a directory of results for all."""
        run = self.shared / "results" / "ex" / "20260101-000000-00000"
        write_run(run, trial([0.1] * 2))
        for path in (run.parents[1], *run.parents[1].rglob("*")):
            os.chown(path, self.victim, self.victim)
        run.parents[1].chmod(0o777)
        self.folder("results/baselines", self.victim, 0o777)
        return run


def refused(use: Callable[[], object]) -> None:
    with pytest.raises((UsageError, PermissionError)):
        use()


def uses_no(folder: Path) -> None:
    """Let torch compile as a rank does; AssertionError if that is in the folder of another user."""
    private_caches()
    assert not Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(folder)
    assert os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] == "0"


Attack = Callable[[Machine], Callable[[], object]]
"""Puts something in the way as the attacker can, and returns what the victim does then."""


def cache(name: str, plant: Callable[[Machine, Path], None]) -> Attack:
    """Put something in the place of a folder of the cache."""

    def attack(on: Machine) -> Callable[[], object]:
        place = on.cached(name, on.victim)
        place.rmdir()
        plant(on, place)
        return lambda: refused(lambda: private_cache(name))

    return attack


def foreign(on: Machine, place: Path) -> None:
    on.cached(place.name, on.attacker)


def link(on: Machine, place: Path) -> None:
    place.symlink_to(on.folder("elsewhere", on.attacker, 0o700))


def pipe(on: Machine, place: Path) -> None:
    os.mkfifo(place, 0o666)


def open_to(mode: int) -> Callable[[Machine, Path], None]:
    return lambda on, place: on.cached(place.name, on.victim, mode) and None


def below(owner: str, mode: int) -> Callable[[Machine, Path], None]:
    def plant(on: Machine, place: Path) -> None:
        place.mkdir(0o700)
        os.chown(place, on.victim, on.victim)
        place.parent.chmod(mode)
        os.chown(place.parent, getattr(on, owner), -1)

    return plant


def planted_lock(plant: Callable[[Machine, Path], None]) -> Attack:
    def attack(on: Machine) -> Callable[[], object]:
        results = on.folder("results", on.victim, 0o777)
        plant(on, results / ".lock")
        return lambda: refused(lambda: DirectoryLock(results, patience_s=0.1))

    return attack


def link_to_the_secret(on: Machine, place: Path) -> None:
    place.symlink_to(on.secret)


def hard_link_to_the_secret(on: Machine, place: Path) -> None:
    place.hardlink_to(on.secret)


def held(on: Machine, place: Path) -> None:
    place.touch(0o666)
    os.chown(place, on.attacker, on.attacker)
    fcntl.flock(os.open(place, os.O_RDWR), fcntl.LOCK_EX)  # until the test's process ends


def of_a_run(name: str, plant: Callable[[Machine, Path], None], use: Callable[[Path], object]) -> Attack:
    def attack(on: Machine) -> Callable[[], object]:
        run = on.results()
        (run / name).unlink(missing_ok=True)
        plant(on, run / name)
        return lambda: refused(lambda: use(run))

    return attack


def inductor(on: Machine) -> Callable[[], object]:
    folder = on.folder("torchinductor_victim", on.attacker, 0o777)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    return lambda: uses_no(folder)


def named(on: Machine) -> Callable[[], object]:
    os.environ["TRITON_CACHE_DIR"] = str(on.folder("triton", on.attacker, 0o777))
    return lambda: refused(private_caches)


def kernels(on: Machine) -> Callable[[], object]:
    on.cached("kernels", on.attacker)
    return lambda: uses_kernels(None)


def uses_kernels(folder: Path | None) -> None:
    assert nvrtc._folder() == folder


def abandoned(on: Machine, plant: Callable[[Machine, Path], None]) -> Callable[[], object]:
    folder = scratch_folder()
    folder.rmdir()
    place = on.shared / folder.name.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1")
    plant(on, place)
    return remove_abandoned


ATTACKS: dict[str, Attack] = {
    "a cached environment": cache("environments", foreign),
    "a link in the place of a cache": cache("environments", link),
    "a pipe in the place of a cache": cache("environments", pipe),
    "a cache that all write": cache("environments", open_to(0o777)),
    "a cache in the attacker's XDG_CACHE_HOME": cache("environments", below("attacker", 0o755)),
    "torch's folder of compiled code": inductor,
    "compiled code where TRITON_CACHE_DIR says": named,
    "kernels of NVRTC": kernels,
    "a lock that links to a file": planted_lock(link_to_the_secret),
    "a lock that is a file's other name": planted_lock(hard_link_to_the_secret),
    "a lock that is a pipe": planted_lock(pipe),
    "a lock that is held": planted_lock(held),
    "a baseline that is a pipe": of_a_run(
        "../../baselines/main.json", pipe, lambda run: load_results("main", run.parents[1])
    ),
    "records that are a pipe": of_a_run("trials.jsonl", pipe, load_records),
    "a run with a link to a file": of_a_run("trials.damaged", link_to_the_secret, RunDirectory.open),
    "a folder of a killed command that is a link": lambda on: abandoned(
        on, lambda on, place: place.symlink_to(on.secret.parent)
    ),
}


BY_ROOT = pytest.param((65534, 0), marks=pytest.mark.check)


@pytest.fixture(params=[(0, 65534), (65534, 65533), BY_ROOT], ids=["root", "nobody", "nobody by root"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Yield a shared folder, with the attacker's files in it made by root."""
    shared = Path(tempfile.mkdtemp(prefix="attacks-"))
    shared.chmod(0o1777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, "")
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "")
    on = Machine(shared, *request.param)
    on.folder("mine", on.victim, 0o700)
    on.secret.write_text(SECRET)
    os.chown(on.secret, on.victim, on.victim)
    yield on
    shutil.rmtree(shared)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_another_user_put_there_harms_nobody(machine: Machine, attack: str) -> None:
    if machine.attacker == 0 and "attacker's XDG" in attack:
        pytest.skip("folders above may be root's")
    use = ATTACKS[attack](machine)
    before = sorted(machine.shared.rglob("*"))
    os.setegid(machine.victim)
    os.seteuid(machine.victim)
    try:
        use()
    finally:
        os.seteuid(0)
        os.setegid(0)
    assert machine.secret.read_text() == SECRET
    assert [path for path in before if not os.path.lexists(path)] == [], "nothing of others is removed"
