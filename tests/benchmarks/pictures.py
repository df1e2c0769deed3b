"""How does the bench draw what happened over time: to several subjects side by side, or in one recovery?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from tests.benchmarks.waterfall import Phase

WIDTH, LANE_HEIGHT, BAR_HEIGHT, LABEL_WIDTH, HEAD_HEIGHT, FOOT_HEIGHT = 960, 44, 26, 200, 56, 44
WATERFALL_HEIGHT, TOLD_WIDTH = 32, 84
TICKS_S = (10, 30, 60)  # the first that gives not too many ticks
TICKS_MAX = 10

# Colours that differ in lightness too, and are visible on light and dark pages.
_FRAME = Template(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" role="img" font-family="sans-serif" '
    'font-size="14">\n<title>$title</title>\n<style>text{fill:#24292f}.useful{fill:#1a7f5a}.lost{fill:#d98c00}'
    ".idle{fill:#d0d7de}.fault{stroke:#b0003a;stroke-width:1.5}@media(prefers-color-scheme:dark)"
    "{text{fill:#e6edf3}.idle{fill:#444c56}.useful{fill:#3fb984}}</style>\n$body\n</svg>\n"
)


@dataclass(frozen=True, slots=True)
class Lane:
    """One subject's spans, in seconds from the start."""

    label: str
    useful_s: Sequence[tuple[float, float]]
    lost_s: Sequence[tuple[float, float]]


def lanes_picture(title: str, lanes: Sequence[Lane], faults_s: Sequence[float], length_s: float) -> str:
    """Returns the text of an SVG file."""
    scale = (WIDTH - LABEL_WIDTH - 16) / length_s
    foot = HEAD_HEIGHT + LANE_HEIGHT * len(lanes)
    parts = [_text(8, 20, title.partition(": share")[0]), *_legend()]
    for number, lane in enumerate(lanes):
        top = HEAD_HEIGHT + number * LANE_HEIGHT
        parts.append(_text(8, top + BAR_HEIGHT - 8, lane.label))
        parts.append(_bar("idle", (0.0, length_s), top, scale))
        parts += [_bar("lost", span, top, scale) for span in lane.lost_s]
        parts += [_bar("useful", span, top, scale) for span in lane.useful_s]
    for at_s in faults_s:
        x = LABEL_WIDTH + at_s * scale
        parts.append(f'<line class="fault" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD_HEIGHT - 6}" y2="{foot - 10}"/>')
    apart_s = next((apart_s for apart_s in TICKS_S if length_s / apart_s <= TICKS_MAX), TICKS_S[-1])
    for tick_s in range(0, int(length_s) + 1, apart_s):
        parts.append(_text(LABEL_WIDTH + tick_s * scale, foot + 12, f"{tick_s} s", anchor="middle"))
    return _FRAME.substitute(width=WIDTH, height=foot + FOOT_HEIGHT - 16, title=escape(title), body="\n".join(parts))


def waterfall_picture(title: str, phases: Sequence[Phase]) -> str:
    """Returns the text of an SVG file with one bar for each phase of a recovery, in its order."""
    scale = (WIDTH - LABEL_WIDTH - TOLD_WIDTH) / phases[-1].ended_s
    parts = [_text(8, 20, f"{title}: {phases[-1].ended_s * 1e3:.1f} ms")]
    for number, phase in enumerate(phases):
        top = HEAD_HEIGHT - 20 + number * WATERFALL_HEIGHT
        parts.append(_text(8, top + BAR_HEIGHT - 8, phase.name))
        parts.append(_bar("lost", (phase.began_s, phase.ended_s), top, scale))
        told = f"{(phase.ended_s - phase.began_s) * 1e3:.1f} ms"
        parts.append(_text(LABEL_WIDTH + phase.ended_s * scale + 6, top + BAR_HEIGHT - 8, told))
    height = HEAD_HEIGHT - 20 + WATERFALL_HEIGHT * len(phases) + 8
    return _FRAME.substitute(width=WIDTH, height=height, title=escape(title), body="\n".join(parts))


def _legend() -> list[str]:
    parts: list[str] = []
    x = LABEL_WIDTH
    for name, text in (("useful", "steps that count"), ("lost", "steps made again"), ("idle", "no step")):
        parts += [f'<rect class="{name}" x="{x}" y="32" width="12" height="12"/>', _text(x + 18, 43, text)]
        x += 160
    return [*parts, f'<line class="fault" x1="{x}" x2="{x}" y1="30" y2="46"/>', _text(x + 8, 43, "fault")]


def _bar(name: str, span_s: tuple[float, float], top: int, scale: float) -> str:
    x, width = LABEL_WIDTH + span_s[0] * scale, (span_s[1] - span_s[0]) * scale
    return f'<rect class="{name}" x="{x:.1f}" y="{top}" width="{width:.2f}" height="{BAR_HEIGHT}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
