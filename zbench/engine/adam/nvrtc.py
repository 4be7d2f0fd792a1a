"""Compiles what runs on CUDA (csrc/cuda) for a device's architecture, by NVRTC, which torch's wheels bring.

Nothing is needed at installation: no compiler of CUDA's, and no list of architectures. A result is kept in a
private folder, under a digest of all that it depends on.
"""

import ctypes
import functools
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from zbench import _native
from zbench.errors import UsageError
from zbench.private import private_cache

_STANDARD = ("cmath", "cstdint", "cstring")  # NVRTC has no headers: cuda/standard.hpp is all of these
_OPTIONS = (
    "--std=c++17",
    "--device-as-default-execution-space",
    *("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true"),  # the CPU's bits
)
_DIGEST_BYTES = 32


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """Load NVRTC of torch's CUDA version (of any, where torch has none); RuntimeError with the remedy."""
    for place in _places():
        with suppress(OSError):
            return ctypes.CDLL(place)
    raise RuntimeError(
        "NVRTC, which compiles zbench's CUDA kernels, is not beside torch; pip install"
        f" nvidia-cuda-nvrtc{'' if _major() == '*' else f'=={_major()}.*'}"
    )


def _major() -> str:
    return torch.version.cuda.split(".")[0] if torch.version.cuda else "*"


def _places() -> Iterator[str]:
    """Yield where the library may be: mapped by torch or known to the loader, in a wheel, in a toolkit."""
    name = f"libnvrtc.so.{_major()}"
    if "*" not in name:
        yield name
    folders = [Path(entry, "nvidia") for entry in sys.path if entry]
    folders += [Path(torch.__file__).parent / "lib", Path(sys.prefix, "lib")]
    folders += [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "lib64")]
    for folder in folders:
        patterns = (f"cu*/lib/{name}", f"cuda_nvrtc/lib/{name}") if folder.name == "nvidia" else (name,)
        for pattern in patterns:
            yield from map(str, sorted(folder.glob(pattern)))


def compiled(unit: str, macros: Mapping[str, int], capability: tuple[int, int]) -> bytes:
    """Return the code of csrc/cuda/`unit`.cu for devices of this compute capability, for cuModuleLoadData.

    RuntimeError where NVRTC is missing, or refuses the source or the architecture.
    """
    library = nvrtc()
    sources = _native.device_sources()
    architecture = _architecture(library, capability)
    options = [f"--gpu-architecture={architecture}", *_OPTIONS, *(f"-D{k}={v}" for k, v in macros.items())]
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    depends_on = (unit, options, major.value, minor.value, sorted(sources.items()))
    folder = _folder()
    cache_file = None if folder is None else folder / hashlib.sha256(repr(depends_on).encode()).hexdigest()
    if cache_file is not None and (code := _read(cache_file)) is not None:
        return code
    kind = "PTX" if architecture.startswith("compute_") else "CUBIN"
    code = _compile(library, unit, sources, options, kind)
    if cache_file is not None:
        _write(cache_file, code)
    return code


def _architecture(library: ctypes.CDLL, capability: tuple[int, int]) -> str:
    """Return the device's architecture, or the latest before it that this NVRTC knows: the driver translates
    its code.
    """
    count = ctypes.c_int()
    _check(library, library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
    archs = (ctypes.c_int * count.value)()
    _check(library, library.nvrtcGetSupportedArchs(archs))
    target = capability[0] * 10 + capability[1]
    if target in archs:
        return f"sm_{target}"
    earlier = [number for number in archs if number < target]
    if not earlier:
        raise RuntimeError(f"this NVRTC compiles for sm_{min(archs)} and later, the device is sm_{target}")
    return f"compute_{max(earlier)}"


def _compile(
    library: ctypes.CDLL, unit: str, sources: Mapping[str, str], options: Sequence[str], kind: str
) -> bytes:
    headers = {name: text for name, text in sources.items() if not name.endswith(".cu")}
    headers |= dict.fromkeys(_STANDARD, sources["cuda/standard.hpp"])
    program = ctypes.c_void_p()
    file = f"cuda/{unit}.cu"
    texts = sources[file].encode(), file.encode()
    includes = len(headers), _strings(headers.values()), _strings(headers)
    _check(library, library.nvrtcCreateProgram(ctypes.byref(program), *texts, *includes))
    try:
        if library.nvrtcCompileProgram(program, len(options), _strings(options)) != 0:
            log = _result(library, "ProgramLog", program).rstrip(b"\0").decode()
            raise RuntimeError(f"NVRTC {' '.join(options)} refuses csrc/{file}: {log}")
        return _result(library, kind, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _strings(texts: Iterable[str]) -> "ctypes.Array[ctypes.c_char_p]":
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)


def _result(library: ctypes.CDLL, kind: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    result = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{kind}")(program, result))
    return result.raw


def _check(library: ctypes.CDLL, error: int) -> None:
    if error != 0:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NVRTC error {error}: {library.nvrtcGetErrorString(error).decode()}")


def _folder() -> Path | None:
    """Return the folder of compiled kernels; None where it is not this user's alone: then nothing is kept."""
    try:
        return private_cache("kernels")
    except UsageError:
        return None


def _read(file: Path) -> bytes | None:
    """Return what `_write` has written, or None where it is missing or damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(file: Path, code: bytes) -> None:
    """Keep code under a name, at once: several ranks may do so. Without room it is not kept."""
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as parts:
        try:
            parts.write(hashlib.sha256(code).digest() + code)
            parts.flush()
            Path(parts.name).replace(file)
        except OSError:
            Path(parts.name).unlink()
