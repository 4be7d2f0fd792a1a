"""The CUDA kernels compile for every architecture where NVRTC is found; what is kept of them is checked."""

import itertools
from pathlib import Path

import pytest
import torch

from zbench import _native
from zbench.engine.adam import nvrtc
from zbench.engine.adam.native import DTYPE_CODES
from zbench.engine.adam.nvrtc import compiled

SOURCES = Path(__file__).resolve().parents[3] / "csrc"
ELF = b"\x7fELF"
ARCHITECTURES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


def why_not() -> str | None:
    try:
        nvrtc.nvrtc()
    except RuntimeError as error:
        return str(error)
    return None


NEEDS_NVRTC = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
NORM = {"ZBENCH_GRAD": DTYPE_CODES[torch.bfloat16]}
UPDATES = [
    {"ZBENCH_GRAD": grad, "ZBENCH_MOMENT": moment, "ZBENCH_OUT": out}
    for grad, moment, out in itertools.product((1, 2, 3), (1, 2), (0, 1, 2, 3))
]
"""Every combination of dtypes: adam/types.hpp's codes."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "zbench" / "kernels"


def test_the_module_holds_the_text_that_is_compiled() -> None:
    texts = _native.device_sources()
    units = {f"cuda/{file.name}" for file in (SOURCES / "cuda").glob("*.cu")}
    assert {"cuda/update.cu", "cuda/standard.hpp"} < units | {"cuda/standard.hpp"} < set(texts)
    assert all((SOURCES / name).read_text() == text for name, text in texts.items())


@NEEDS_NVRTC
@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_every_unit_compiles_for_every_architecture(capability: tuple[int, int]) -> None:
    chosen = UPDATES if capability == (9, 0) else UPDATES[:1]
    units = [("update", macros) for macros in chosen]
    units += [(unit, {"ZBENCH_GRAD": k}) for unit in ("square_sums", "sum_parts") for k in (1, 2, 3)]
    units.append(("yardstick", {}))
    for unit, macros in units:
        assert compiled(unit, macros, capability)[:4] == ELF, (unit, macros)


@NEEDS_NVRTC
def test_a_later_device_gets_code_that_its_driver_translates() -> None:
    """PTX of the latest architecture before it that this NVRTC knows."""
    latest = int(nvrtc._architecture(nvrtc.nvrtc(), (99, 0)).removeprefix("compute_"))
    assert nvrtc._architecture(nvrtc.nvrtc(), divmod(latest, 10)) == f"sm_{latest}"
    for capability, target in (((99, 0), latest), ((9, 9), 90)):
        code = compiled("square_sums", NORM, capability)
        assert f".target sm_{target}".encode() in code
        assert b".visible .entry zbench_square_sums" in code
    with pytest.raises(RuntimeError, match="the device is sm_30"):
        compiled("square_sums", NORM, (3, 0))


@NEEDS_NVRTC
def test_the_arithmetic_is_rounded_as_the_cpus() -> None:
    """PTX says of each operation how it rounds; nothing is contracted, approximate or flushed to zero."""
    text = compiled("update", UPDATES[0], (99, 0)).decode()
    words = [word.split(".") for word in text.split() if word.endswith(".f32")]
    kinds = {"add", "mul", "fma", "div", "sqrt"}
    operations = [word for word in words if word[0] in kinds]
    assert {kind for kind, *_ in operations} == kinds
    assert all(rounding == "rn" for _, rounding, *_ in operations)
    assert not any(".approx" in word or ".ftz" in word for word in text.split())


@NEEDS_NVRTC
def test_what_is_compiled_is_kept_and_damage_is_seen(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = compiled("square_sums", NORM, (9, 0))
    (file,) = own_cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("it is kept"))
        assert compiled("square_sums", NORM, (9, 0)) == code
    file.write_bytes(file.read_bytes()[:-1])
    assert compiled("square_sums", NORM, (9, 0)) == code
    assert file.read_bytes()[32:] == code
    compiled("square_sums", {"ZBENCH_GRAD": 1}, (9, 0))
    assert len(list(own_cache.iterdir())) == 2


@NEEDS_NVRTC
def test_where_others_may_write_nothing_is_kept(own_cache: Path) -> None:
    own_cache.parent.mkdir(parents=True)
    own_cache.parent.chmod(0o777)
    assert compiled("square_sums", NORM, (9, 0))[:4] == ELF
    assert not own_cache.exists() or not list(own_cache.iterdir())


def test_without_nvrtc_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(place: str) -> None:
        raise OSError(f"{place}: cannot open shared object file")

    monkeypatch.setattr(nvrtc.ctypes, "CDLL", refuse)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    nvrtc.nvrtc.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"pip install nvidia-cuda-nvrtc==13\.\*"):
            nvrtc.nvrtc()
    finally:
        nvrtc.nvrtc.cache_clear()
