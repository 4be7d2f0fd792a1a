"""Texts and marks of pictures that are kept in files: what users see changes only with a diff.

`KEEP=1 pytest tests/PACKAGE` writes them anew.
"""

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zbench.report.html.drawing import NARROW, WIDE, Canvas, Picture

_FRACTION = re.compile(r"-?\d+\.\d{7,}(?:e[+-]\d+)?")
_STYLE = ("color", "facecolor", "linewidth", "linestyle", "marker", "markersize", "alpha", "zorder")
_FRAME = ("length", "pad", "labelcolor", "gridOn", "grid_color", "grid_linewidth")
_TEXT = ("text", "ha", "va", "weight")


def check(path: Path, text: str) -> None:
    """Hold `text` against a file; long fractions count to six digits."""
    content = _FRACTION.sub(lambda number: f"{float(number.group()):.6g}", text).rstrip("\n") + "\n"
    if os.environ.get("KEEP"):
        path.write_text(content, encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = list(difflib.unified_diff(lines, content.splitlines(), "kept", "now", lineterm=""))
    assert not changed, "\n".join(changed)


def drawn(picture: Picture, *, narrow: bool) -> str:
    """Return a line for each mark that a picture paints: where it lies, its style, its text on hover."""
    from matplotlib.figure import Figure

    width = NARROW if narrow else WIDE
    figure = Figure((width / 72, picture.height / 72), dpi=72)
    canvas = Canvas(figure, figure.add_axes((0.1, 0.1, 0.8, 0.8)), narrow=narrow)
    picture.paint(canvas)
    return "\n".join(_marks(canvas))


def _marks(canvas: Canvas) -> Iterator[str]:
    axes = canvas.axes
    yield f"axes {_rounded([axes.get_position().bounds, axes.get_xlim(), axes.get_ylim()])}"
    edges = [name for name, spine in axes.spines.items() if spine.get_visible()]
    yield f"frame {edges} below all: {axes.get_axisbelow()}"
    for axis in (axes.xaxis, axes.yaxis):
        look = axis.get_tick_params()
        yield f"ticks {[tick.get_text() for tick in axis.get_ticklabels()]}"
        yield f"{' '.join(f'{name}={look[name]}' for name in _FRAME if name in look)}"
    for line in axes.lines:
        hover = canvas.hovers.get(line.get_gid() or "")
        whole = "" if line.get_clip_on() else " whole at the edge, too"
        yield f"line {_rounded(line.get_xydata())} {_style(line, _STYLE)} {hover!r}{whole}"
    for group in axes.collections:
        addresses = group.get_urls()
        hovers = [canvas.hovers.get(address) for address in addresses]
        yield f"dots {_rounded(group.get_offsets())} {addresses} {hovers}"
        yield f"paths {[_rounded(path.vertices) for path in group.get_paths()][:9]}"
    for patch in axes.patches:
        place = patch.get_path().transformed(patch.get_patch_transform()).get_extents().bounds
        yield f"patch {_rounded(place)} {_style(patch, _STYLE)} {canvas.hovers.get(patch.get_gid())!r}"
    for text in axes.texts:
        yield f"text {_rounded(text.get_position())} {_style(text, (*_STYLE, *_TEXT))}"


def _style(artist: Any, names: tuple[str, ...]) -> str:
    attributes = {name: getattr(artist, f"get_{name}")() for name in names if hasattr(artist, f"get_{name}")}
    return " ".join(
        f"{name}={_rounded(value) if type(value) is tuple else value}" for name, value in attributes.items()
    )


def _rounded(numbers: Any) -> list[Any]:
    if isinstance(numbers, str):
        return numbers
    return [_rounded(number) if hasattr(number, "__len__") else float(f"{number:.4g}") for number in numbers]
