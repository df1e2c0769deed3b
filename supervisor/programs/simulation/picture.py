"""How is the time of simulated jobs drawn as one SVG, with a lane for each?"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template

from supervisor.programs.simulation.scenario import DAY_S, HOUR_S, Life
from supervisor.programs.simulation.time_accounting import Spent

WIDTH, LANE_HEIGHT, BAR_HEIGHT, LABEL_WIDTH, HEAD_HEIGHT, FOOT_HEIGHT = 960, 44, 26, 200, 76, 44
TICKS_MAX = 12
LEGEND = (
    ("useful", "steps that count"), ("redone", "steps made again"), ("unnoticed", "fault not noticed yet"),
    ("starting", "ranks start and load"), ("idle", "too few nodes, delay or queue"),
)  # fmt: skip
CLASS_OF = {
    Spent.TRAINING: "useful", Spent.REDONE: "redone", Spent.UNNOTICED: "unnoticed", Spent.STARTING: "starting",
    Spent.WAITING: "idle", Spent.REQUEUED: "idle",
}  # fmt: skip

# Colours that also differ in lightness, and suit light and dark pages.
_FRAME = Template(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" role="img" font-family="sans-serif" '
    'font-size="14">\n<title>$title</title>\n<style>text{fill:#24292f}.useful{fill:#1a7f5a}.redone{fill:#d98c00}'
    ".unnoticed{fill:#b0003a}.starting{fill:#2f6fd0}.idle{fill:#b6bec8}@media(prefers-color-scheme:dark)"
    "{text{fill:#e6edf3}.idle{fill:#6a737d}.useful{fill:#3fb984}.starting{fill:#6ea8fe}.unnoticed{fill:#ff5c7c}}"
    "</style>\n$body\n</svg>\n"
)


def picture(title: str, lives: Sequence[tuple[str, Life]], duration_s: float) -> str:
    """Returns the text of an SVG file. A life without a label is not drawn."""
    scale = (WIDTH - LABEL_WIDTH - 24) / duration_s
    foot = HEAD_HEIGHT + LANE_HEIGHT * len(lives)
    parts = [_text(8, 20, title), *_legend()]
    for number, (label, life) in enumerate(lives):
        top = HEAD_HEIGHT + number * LANE_HEIGHT
        parts.append(_text(8, top + BAR_HEIGHT - 8, f"{label}: {life.goodput:.1%}"))
        parts += [_bar(from_s, to_s, what, top, scale) for from_s, to_s, what in life.spans]
    unit_s, unit = (DAY_S, "d") if duration_s >= 2 * DAY_S else (HOUR_S, "h")
    apart = next(each for each in (1, 2, 5, 10, 20, 50, 100, 1000, 10_000) if duration_s / unit_s / each <= TICKS_MAX)
    for tick in range(0, int(duration_s / unit_s) + 1, apart):
        parts.append(_text(LABEL_WIDTH + tick * unit_s * scale, foot + 12, f"{tick} {unit}", anchor="middle"))
    return _FRAME.substitute(width=WIDTH, height=foot + FOOT_HEIGHT - 16, title=escape(title), body="\n".join(parts))


def _legend() -> list[str]:
    parts: list[str] = []
    x = 8
    for name, text in LEGEND:
        parts += [f'<rect class="{name}" x="{x}" y="38" width="12" height="12"/>', _text(x + 18, 49, text)]
        x += 40 + 7 * len(text)
    return parts


def _bar(from_s: float, to_s: float, what: str, top: int, scale: float) -> str:
    """Returns a bar that is never too thin to see."""
    x, width = LABEL_WIDTH + from_s * scale, max((to_s - from_s) * scale, 0.4)
    name = CLASS_OF[Spent(what)]
    return f'<rect class="{name}" x="{x:.2f}" y="{top}" width="{width:.2f}" height="{BAR_HEIGHT}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
