"""Each revision's own files: the sweep file, and what lies beside it, as that revision has them."""

import tempfile
from pathlib import Path

from zbench.launch.revisions import Version, extract


class Checkouts:
    """Writes out the files of revisions as they are needed; they are gone when this object is."""

    def __init__(self, file: Path) -> None:
        self._file = file.resolve()
        self._scratch = tempfile.TemporaryDirectory(prefix="zbench-checkout-")
        self._files: dict[Version, Path] = {}

    def sweep_file(self, version: Version) -> Path:
        """Return the sweep file that a version runs.

        Of a revision that is its own, in a copy of its own tree: a worker looks for the sweep's model and
        data beside the file. A revision that lacks the file gets the given one in the same place. Outside
        the repository, or for a bare interpreter, the given file is run as it is.
        """
        if version not in self._files:
            self._files[version] = self._written_out(version)
        return self._files[version]

    def _written_out(self, version: Version) -> Path:
        inside = version.repository is not None and self._file.is_relative_to(version.repository)
        if version.commit is None or version.repository is None or not inside:
            return self._file
        tree = Path(self._scratch.name) / version.commit
        if not tree.exists():
            extract(version.commit, tree, version.repository)
        file = tree / self._file.relative_to(version.repository)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self._file.read_bytes())
        return file
