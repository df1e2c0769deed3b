"""How is a job's life drawn as one picture: its incidents, its own lane, and lanes of nodes and ranks?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from supervisor.report import formatting, summary
from supervisor.report.lanes import Bar, Lane, chosen_lanes, job_lane
from supervisor.report.phases import LEGEND, TROUBLES
from supervisor.report.timeline.timeline import Incident, Life

WIDTH, LABEL, RIGHT = 960, 170, 14
LANE, HEAD_LANE, JOB_LANE = 18, 20, 26
LEGEND_HEIGHT, MARKS_HEIGHT, AXIS_HEIGHT = 26, 22, 26
TICKS_MAX = 8
LEAST_PX = 1.5  # a short recovery must be visible
MARK_PX = 18  # marks closer than this are merged
LABEL_MAX = 24
_TICKS_S = (
    0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200,
    86_400, 172_800, 432_000, 864_000, 2_592_000,
)  # fmt: skip
# How much of a lane's height a bar takes. Bars of idle time are thinner, so that colour is not the only difference.
HEIGHTS = {"run": 1.0, "unnoticed": 1.0, "stop": 0.7, "start": 0.7, "inside": 0.7, "idle": 0.2}

STYLE = (
    "text{fill:#1f2328;font:12px system-ui,sans-serif}.quiet{fill:#57606a}.strong{font-weight:600}"
    ".run{fill:#1a7f5a}.unnoticed{fill:#b0003a}.stop{fill:#b86e00}.start{fill:#2f6fd0}.inside{fill:#7d4cc4}"
    ".idle{fill:#8c959f}.failed{stroke:#b0003a;stroke-width:2}.mark{fill:#b0003a}.mark-text{fill:#fff;font-weight:600}"
    ".grid{stroke:#d0d7de;stroke-width:1}"
    "@media screen and (prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9da7b1}.run{fill:#3fb984}"
    ".unnoticed{fill:#ff6b8b}.stop{fill:#e3a23c}.start{fill:#6ea8fe}.inside{fill:#b794f6}.idle{fill:#7d8590}"
    ".failed{stroke:#ff6b8b}.mark{fill:#ff6b8b}.mark-text{fill:#1b0006}.grid{stroke:#30363d}}"
)


def picture_of(life: Life, *, is_own_file: bool = True, name: str = "picture") -> str:
    """Returns the text of an SVG file; if not `is_own_file`, for a page that already has STYLE."""
    drawing = _Drawing(life)
    body = "\n".join(drawing.parts())
    title = escape(formatting.plain(f"job {life.job_id}: {summary.headline(life)}"))
    described = escape(_description(life))
    style = f"<style>{STYLE}</style>" if is_own_file else ""
    frame = 'xmlns="http://www.w3.org/2000/svg" ' if is_own_file else ""
    return (
        f'<svg {frame}viewBox="0 0 {WIDTH} {drawing.height}" role="img" class="life" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{title}</title>'
        f'<desc id="{name}-desc">{described}</desc>{style}\n{body}\n</svg>\n'
    )


def _description(life: Life) -> str:
    """Returns what the picture shows, in words."""
    told = [f"{formatting.percent(share)} {phase.value}" for phase, _, share in summary.spent(life)]
    found = [
        f"incident {each.number}, {TROUBLES[each.trouble]}, {formatting.after(each.noticed_ns, life.began_ns)}"
        for each in life.incidents[:20]
    ]
    return "; ".join([f"a timeline of {formatting.duration(life.whole_s)}", *told, *found])


class _Drawing:
    def __init__(self, life: Life) -> None:
        self._life = life
        self._lanes = chosen_lanes(life)
        self._scale = (WIDTH - LABEL - RIGHT) / max(life.until_ns - life.began_ns, 1)
        self._top = LEGEND_HEIGHT + MARKS_HEIGHT
        heights = [HEAD_LANE if lane.is_head else LANE for lane in self._lanes]
        self._bottom = self._top + JOB_LANE + sum(heights)
        self.height = self._bottom + AXIS_HEIGHT

    def parts(self) -> Iterator[str]:
        yield from _legend()
        yield from self._axis()
        yield from self._marks()
        yield from self._draw(job_lane(self._life), self._top, JOB_LANE, is_job=True)
        top = self._top + JOB_LANE
        for lane in self._lanes:
            height = HEAD_LANE if lane.is_head else LANE
            yield from self._draw(lane, top, height)
            top += height

    def _x(self, at_ns: int) -> float:
        return LABEL + (at_ns - self._life.began_ns) * self._scale

    def _draw(self, lane: Lane, top: int, height: int, *, is_job: bool = False) -> Iterator[str]:
        label = _clipped(lane.label)
        kind = "strong" if is_job or lane.is_head else "quiet"
        yield _text(LABEL - 8, top + height - 5, label, kind=kind, anchor="end")
        room = height - 4
        for bar in sorted(lane.bars, key=lambda bar: bar.look != "run"):  # Short bars are drawn over long ones.
            yield self._bar(bar, top + 2, room)
        for at_ns in lane.failed_ns:
            x = self._x(at_ns)
            yield f'<line class="failed" x1="{x:.1f}" x2="{x:.1f}" y1="{top + 1}" y2="{top + height - 1}"/>'

    def _bar(self, bar: Bar, top: float, room: float) -> str:
        x, width = self._x(bar.from_ns), max((bar.to_ns - bar.from_ns) * self._scale, LEAST_PX)
        height = room * HEIGHTS[bar.look]
        y = top + (room - height) / 2
        return f'<rect class="{bar.look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'

    def _marks(self) -> Iterator[str]:
        """Draws a pin for each incident; incidents close together share one."""
        for x, incidents in gathered([(self._x(each.noticed_ns), each) for each in self._life.incidents]):
            first, last = incidents[0].number, incidents[-1].number
            text = str(first) if first == last else f"{first}-{last}"
            half = 4 + 3.6 * len(text)
            x = min(max(x, LABEL + half), WIDTH - half)
            top = LEGEND_HEIGHT + 2
            yield f'<rect class="mark" x="{x - half:.1f}" y="{top}" width="{2 * half:.1f}" height="16" rx="8"/>'
            yield _text(x, top + 12, text, kind="mark-text", anchor="middle")

    def _axis(self) -> Iterator[str]:
        whole_s = self._life.whole_s
        step_s = next((each for each in _TICKS_S if whole_s / each <= TICKS_MAX), _TICKS_S[-1])
        for number in range(int(whole_s / step_s) + 1):
            x = LABEL + number * step_s * 1e9 * self._scale
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{self._top}" y2="{self._bottom}"/>'
            yield _text(x, self._bottom + 16, formatting.tick(number * step_s), kind="quiet", anchor="middle")


def gathered(placed: Sequence[tuple[float, Incident]]) -> Iterator[tuple[float, list[Incident]]]:
    """Yields incidents whose marks would overlap, and the position of their mark."""
    group: list[Incident] = []
    group_x = 0.0
    for x, incident in sorted(placed, key=lambda each: each[0]):
        if group and x - group_x > MARK_PX * (1 + 0.4 * (len(group) > 1)):
            yield group_x, group
            group = []
        if not group:
            group_x = x
        group.append(incident)
    if group:
        yield group_x, group


def _legend() -> Iterator[str]:
    x = 8.0
    for look, told in LEGEND:
        height = 12 * HEIGHTS[look]
        yield f'<rect class="{look}" x="{x:.0f}" y="{4 + (12 - height) / 2:.1f}" width="14" height="{height:.1f}"/>'
        yield _text(x + 20, 14, told)
        x += 40 + 6.3 * len(told)


def _clipped(label: str) -> str:
    label = formatting.plain(label)
    return label if len(label) <= LABEL_MAX else f"…{label[-LABEL_MAX + 1 :]}"


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
