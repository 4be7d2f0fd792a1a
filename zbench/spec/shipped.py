"""The sweeps that come with zbench, found by their names wherever it is installed."""

import sysconfig
from pathlib import Path

import zbench


def directory() -> Path | None:
    """Return where the shipped sweeps lie: in a clone beside the package, in a wheel within it."""
    packages = [*map(Path, zbench.__path__), Path(sysconfig.get_path("platlib")) / "zbench"]
    places = [*(package.parent / "sweeps" for package in packages), *(p / "sweeps" for p in packages)]
    return next((place for place in places if (place / "quickstart.yaml").is_file()), None)


def names() -> list[str]:
    """Return the names of the shipped sweeps."""
    place = directory()
    return sorted(file.stem for file in place.glob("*.yaml")) if place else []


def sweep_file(path: Path) -> Path:
    """Return the shipped sweep that a bare name such as `quickstart` means; any other path as it is."""
    place = directory()
    if place is None or path.exists() or path.name != str(path) or path.suffix:
        return path
    shipped = place / f"{path.name}.yaml"
    return shipped if shipped.is_file() else path
