"""The colours of page and pictures, for light and dark screens.

Series colours are those of Okabe and Ito (distinct for colour-blind readers), lightened on dark ground.
Pictures are drawn in the light colours; a rule per colour replaces each by its dark one.
"""

from zbench.report.roles import ROLES

LIGHT = {
    "page": "#f5f6f8", "card": "#ffffff", "ink": "#1b1f24", "muted": "#59636e", "line": "#d8dde3",
    "grid": "#e8ebef", "accent": "#2f5bd8",
    **{name: role.light for name, role in ROLES.items()},
    "s1": "#0072b2", "s2": "#e69f00", "s3": "#009e73", "s4": "#cc79a7", "s5": "#56b4e9", "s6": "#d55e00",
    "s7": "#8d7b00", "s8": "#7f8790",
}  # fmt: skip
DARK = {
    "page": "#0e1116", "card": "#161b22", "ink": "#e6e9ed", "muted": "#a0a9b4", "line": "#30363f",
    "grid": "#262d36", "accent": "#8ea8ff",
    **{name: role.dark for name, role in ROLES.items()},
    "s1": "#4aa3df", "s2": "#f0b429", "s3": "#2fbf95", "s4": "#e29bc2", "s5": "#8fd0f5", "s6": "#f0803c",
    "s7": "#d3c23a", "s8": "#9aa3ad",
}  # fmt: skip
SERIES = ("s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")
_DARK_SCREEN = "@media screen and (prefers-color-scheme: dark)"


def series(index: int) -> str:
    """Return the role of the index-th series; those beyond the palette share its last, grey one."""
    return SERIES[min(index, len(SERIES) - 1)]


def variables() -> str:
    """Return the colours as CSS variables."""
    light, dark = (" ".join(f"--{k}: {v};" for k, v in colours.items()) for colours in (LIGHT, DARK))
    return f":root {{ color-scheme: light dark; {light} }}\n{_DARK_SCREEN} {{ :root {{ {dark} }} }}\n"


def drawing_sheet() -> str:
    """Return the rules for pictures: the system's font, a halo around text, and the dark colours."""
    text = (
        "svg text { font-family: system-ui, sans-serif !important; paint-order: stroke; stroke-width: 3px; }"
    )
    halo = f"svg text {{ stroke: {LIGHT['card']}; }}"
    dark = [
        f'[style*="{kind}: {colour}"] {{ {kind}: {DARK[role]} !important; }}'
        for role, colour in LIGHT.items()
        for kind in ("fill", "stroke")
    ]
    dark.append(f"svg text {{ stroke: {DARK['card']}; }}")
    return f"{text}\n{halo}\n{_DARK_SCREEN} {{\n" + "\n".join(dark) + "\n}\n"
