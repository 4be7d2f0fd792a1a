"""Colours and the style sheet, for light and dark screens, wide and narrow ones, and paper.

Series colours are those of Okabe and Ito (distinct for colour-blind readers), lightened on dark ground.
"""

SERIES = ("s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")

COLOURS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --muted: #59636e; --line: #dfe3e8; --grid: #e8ebef;
  --good: #0b7a4b; --fine: #1d6fb8; --warn: #a65f00; --bad: #c0262d; --none: #768390;
  --s1: #0072b2; --s2: #e69f00; --s3: #009e73; --s4: #cc79a7; --s5: #56b4e9; --s6: #d55e00;
  --s7: #8d7b00; --s8: #7f8790;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1116; --card: #161b22; --ink: #e6e9ed; --muted: #a0a9b4; --line: #2c333c; --grid: #262d36;
    --good: #3fc380; --fine: #6cb6ff; --warn: #e0a43b; --bad: #ff7b72; --none: #8b949e;
    --s1: #4aa3df; --s2: #f0b429; --s3: #2fbf95; --s4: #e29bc2; --s5: #8fd0f5; --s6: #f0803c;
    --s7: #d3c23a; --s8: #9aa3ad;
  }
}
"""

MARKS = """
svg text { font: 12px system-ui, sans-serif; fill: var(--muted); stroke: var(--card);
  paint-order: stroke; stroke-width: 4px; stroke-linejoin: round; }
svg text.ink { fill: var(--ink); }
svg text.strong { fill: var(--ink); font-weight: 600; }
.short, .narrow { display: none; }
@media (max-width: 44rem) {
  .short { display: inline; } .narrow { display: block; font-size: .85rem; } svg .full { display: none; }
}
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--line); stroke-width: 1; }
svg .front { stroke: var(--muted); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .part { stroke: var(--card); stroke-width: 1; }
svg .dot { fill: var(--ink); opacity: .45; }
svg .range { fill: var(--s1); opacity: .3; }
svg .median { stroke: var(--s1); stroke-width: 3; }
svg .margin { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg .zero { stroke: var(--muted); stroke-width: 1.5; }
svg .ring { fill: none; stroke-width: 2; }
.identical, .pass { fill: var(--good); stroke: var(--good); }
.equivalent { fill: var(--fine); stroke: var(--fine); }
.drifted, .inconclusive { fill: var(--warn); stroke: var(--warn); }
.wrong, .regression, .incorrect, .failed { fill: var(--bad); stroke: var(--bad); }
.unchecked, .unmeasured { fill: var(--none); stroke: var(--none); }
""" + "".join(f".{name} {{ fill: var(--{name}); background: var(--{name}); }}\n" for name in SERIES)

PAGE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: .5rem 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 .75rem; }
.muted, dt, caption, figcaption { color: var(--muted); }
section, .facts { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem;
  margin: 1rem 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem 1.5rem; }
.facts div { overflow-wrap: break-word; min-width: 0; }
.facts .wide { grid-column: 1 / -1; }
dt { font-size: .85rem; }
dd { margin: 0; font-weight: 600; }
figure { margin: 0; }
.picture { padding: 1.75rem 0 .5rem; }
svg { display: block; overflow: visible; max-width: 100%; }
.scroll { overflow-x: auto; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--s1); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--muted); }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 13rem;
  overflow-wrap: break-word; }
td.word, th.word { text-align: left; }
caption { text-align: left; padding-bottom: .5rem; }
.badge { font-weight: 600; background: none; }
.badge::before { content: ""; display: inline-block; width: .6em; height: .6em; border-radius: 50%;
  margin-right: .4em; background: currentColor; }
.badge.identical, .badge.pass { color: var(--good); }
.badge.equivalent { color: var(--fine); }
.badge.drifted, .badge.inconclusive { color: var(--warn); }
.badge.wrong, .badge.regression, .badge.incorrect, .badge.failed { color: var(--bad); }
.badge.unchecked, .badge.unmeasured { color: var(--none); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; padding: 0;
  margin: .25rem 0 .75rem; font-size: .85rem; }
.legend .key { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin-right: .4em; }
details { margin-top: .75rem; }
summary { cursor: pointer; color: var(--muted); font-size: .9rem; }
ol.front, ul.plain { margin: .5rem 0 0; padding-left: 1.5rem; font-size: .9rem; overflow-wrap: anywhere; }
@media print { body { background: none; } section, .facts { break-inside: avoid; } }
"""
