"""Draw the map of how-it-works.md: the phases of a bisection, and the way of one trial.

    python docs/map.py

writes docs/map.svg. The phases are those of `bisect_cfg.study.story`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

from bisect_cfg.study.story import PHASES

PICTURE = Path(__file__).with_name("map.svg")
WIDTH, HEIGHT, BOX_HEIGHT, GAP, MARGIN = 1000, 430, 62, 14, 20

FINDS = {
    "reproduce": ("reproduce", "the failure"),
    "find_factors": ("factors", "what differs"),
    "find_baselines": ("baselines", "start, origin"),
    "isolate": ("isolate", "the causes"),
    "prove": ("prove", "from step 0"),
    "find_rows": ("data rows", "guilty rows"),
    "locate": ("locate", "the place"),
    "recommend": ("recommend", "safe values"),
}
"""Of each phase its title and what it finds."""

TRIAL = (
    ("search/, remedy/", "which run next?"),
    ("a plan", "settings, steps, seed"),
    ("runner/", "starts and watches"),
    ("your script", "with probe/ inside"),
    ("an observation", "what was seen"),
    ("runner/verdict.py", "PASS FAIL UNRESOLVED"),
)
AROUND = (
    ("targets/", "what you run, what it sets"),
    ("store/", "every run, an Optuna trial"),
    ("explain/", "known failures"),
    ("rewrite/", "the edits of your files"),
    ("report/", "the answer on every screen"),
)


class Row(NamedTuple):
    """Boxes in a line: title and text of each."""

    title: str
    boxes: tuple[tuple[str, str], ...]
    top: int
    colour: str
    arrows: bool


def drawn(row: Row) -> str:
    """A row as SVG."""
    width = (WIDTH - 2 * MARGIN - GAP * (len(row.boxes) - 1)) / len(row.boxes)
    parts = [f'<text class="row" x="{MARGIN}" y="{row.top - 12}">{escape(row.title)}</text>']
    for place, (title, text) in enumerate(row.boxes):
        left = MARGIN + place * (width + GAP)
        middle, centre = left + width / 2, row.top + BOX_HEIGHT / 2
        parts += [
            f'<rect x="{left:.1f}" y="{row.top}" width="{width:.1f}" height="{BOX_HEIGHT}" fill="{row.colour}"/>',
            f'<text class="title" x="{middle:.1f}" y="{row.top + 26}">{escape(title)}</text>',
            f'<text class="text" x="{middle:.1f}" y="{row.top + 46}">{escape(text)}</text>',
        ]
        if row.arrows and place:
            parts.append(f'<path d="M{left - GAP + 2:.1f} {centre} h{GAP - 6}" marker-end="url(#tip)"/>')
    return "\n".join(parts)


def picture() -> str:
    """The whole map as SVG, which fetches nothing."""
    phases = tuple(FINDS[phase.__name__] for phase in PHASES)
    rows = (
        Row("A bisection: the phases of study/story.py", phases, 50, "#dbeafe", True),
        Row("One trial, again and again, in each of these phases", TRIAL, 180, "#dcfce7", True),
        Row("What they stand on, and what you get", AROUND, 330, "#f1f5f9", False),
    )
    left, right, y = MARGIN + 70, WIDTH - MARGIN - 70, rows[1].top + BOX_HEIGHT
    back = f'<path d="M{right} {y} v22 H{left} v-18" marker-end="url(#tip)"/>'
    told = (
        f'<text class="text" x="{WIDTH / 2}" y="{y + 17}">store/: every decision is made from what is recorded</text>'
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">
<style>text {{ fill: #0f172a }} .row {{ font-size: 15px; font-weight: bold }}
.title {{ font-size: 14px; font-weight: bold; text-anchor: middle }} .text {{ font-size: 12px; text-anchor: middle }}
path {{ stroke: #334155; fill: none; stroke-width: 1.5 }} rect {{ stroke: #94a3b8 }}</style>
<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">
<path d="M0 0 L6 3 L0 6 z" style="fill: #334155; stroke: none"/></marker></defs>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff" style="stroke: none"/>
{drawn(rows[0])}
{drawn(rows[1])}
{back}
{told}
{drawn(rows[2])}
</svg>
"""


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
