// How are the lanes that can be seen drawn, for the part of time that is looked at?

const ROW = 20;
const JOB_ROW = 26;
const PIN = 20;
const HEIGHTS = { run: 1, unnoticed: 1, stop: 0.7, start: 0.7, inside: 0.7, idle: 0.2 };
// Of bars too short to be seen apart, the one that matters most is shown.
const WEIGHT = { run: 0, idle: 1, start: 2, stop: 3, inside: 4, unnoticed: 5 };
const TICKS_MS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 18e5, 36e5, 72e5, 144e5,
  216e5, 432e5, 864e5, 1728e5, 432e6, 864e6, 2592e6,
];

const view = { from: 0, to: Math.max(life.length, 1) };

function escaped(words) {
  return words.replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

function labelWidth(width) {
  return Math.max(84, Math.min(180, width * 0.2));
}

function placeOf(width) {
  const left = labelWidth(width);
  const scale = (width - left - 8) / (view.to - view.from);
  return { left, right: width - 8, x: (at) => left + (at - view.from) * scale, at: (x) => view.from + (x - left) / scale };
}

function drawnBars(bars, place, top, room) {
  const tiny = new Map();
  const parts = [];
  const rect = (look, x, width) => {
    const height = room * HEIGHTS[look];
    const y = top + (room - height) / 2;
    return `<rect class="${look}" x="${x.toFixed(1)}" y="${y.toFixed(1)}" width="${width.toFixed(1)}" height="${height.toFixed(1)}"/>`;
  };
  for (const bar of bars) {
    if (bar.to < view.from || bar.from > view.to) continue;
    const from = Math.max(place.x(bar.from), place.left);
    const to = Math.min(place.x(bar.to), place.right);
    if (to - from >= 1) parts.push(rect(bar.look, from, to - from));
    else {
      const pixel = Math.floor(from);
      if (!tiny.has(pixel) || WEIGHT[bar.look] > WEIGHT[tiny.get(pixel)]) tiny.set(pixel, bar.look);
    }
  }
  for (const [pixel, look] of tiny) if (look !== "run") parts.push(rect(look, pixel, 1.5));
  return parts.join("");
}

function drawnFailures(one, place, top) {
  const pixels = new Set();
  for (const run of one.failures) if (run.to >= view.from && run.to <= view.to) pixels.add(Math.round(place.x(run.to)));
  return [...pixels].map((x) => `<line class="failed" x1="${x}" x2="${x}" y1="${top + 1}" y2="${top + ROW - 1}"/>`).join("");
}

function shortened(label, width) {
  const room = Math.floor((labelWidth(width) - 22) / 6.4);
  return label.length <= room ? label : `…${label.slice(1 - room)}`;
}

function drawLanes(box, rows, chosen) {
  const width = box.clientWidth;
  const place = placeOf(width);
  const first = Math.floor(box.scrollTop / ROW);
  const height = Math.min(box.clientHeight, rows.length * ROW);
  const offset = first * ROW - box.scrollTop;
  const parts = [];
  for (let at = first; at < rows.length && offset + (at - first) * ROW < height + ROW; at += 1) {
    const one = rows[at];
    const top = offset + (at - first) * ROW;
    const sign = one.node && life.nodes.length > 1 ? (one.node.isOpen ? "▾ " : "▸ ") : "";
    const kind = one.node ? "strong" : "quiet";
    parts.push(`<text class="${kind}" x="${place.left - 6}" y="${top + 14}" text-anchor="end">${escaped(sign + shortened(one.label, width))}</text>`);
    parts.push(drawnBars(barsOf(one), place, top + 3, ROW - 6), drawnFailures(one, place, top));
    if (at === chosen) parts.push(`<rect class="chosen-lane" x="1" y="${top + 1}" width="${width - 3}" height="${ROW - 2}" rx="3"/>`);
  }
  const spare = Math.max(0, rows.length * ROW - height);
  box.innerHTML = `<svg width="${width}" height="${height}" aria-hidden="true">${parts.join("")}</svg><div class="spacer"></div>`;
  box.lastChild.style.height = `${spare}px`;
}

function drawHead(box, width) {
  const place = placeOf(width);
  const pins = clusters(place).map(({ x, incidents }) => {
    const first = incidents[0];
    const last = incidents[incidents.length - 1];
    const name = first === last ? `${first.number}` : `${first.number}–${last.number}`;
    const half = 5 + 3.6 * name.length;
    const at = Math.min(Math.max(x, half), width - half);
    const told = first === last ? `Incident ${first.number}, ${first.kind}: ${first.cause}` : `Incidents ${first.number} to ${last.number}: zoom in`;
    return (
      `<a href="#incident-${first.number}" data-first="${first.number}" data-last="${last.number}" aria-label="${escaped(told)}">` +
      `<title>${escaped(told)}</title><rect class="mark" x="${(at - half).toFixed(1)}" y="1" width="${(2 * half).toFixed(1)}" height="17" rx="8.5"/>` +
      `<text class="mark-text" x="${at.toFixed(1)}" y="13.5" text-anchor="middle">${name}</text></a>`
    );
  });
  const course = life.course.map(([look, from, to]) => ({ look, from, to }));
  box.innerHTML =
    `<svg width="${width}" height="${PIN + JOB_ROW}" role="group" aria-label="Incidents">${pins.join("")}` +
    `<g aria-hidden="true"><text class="strong" x="${place.left - 6}" y="${PIN + 17}" text-anchor="end">job</text>` +
    `${drawnBars(course, place, PIN + 2, JOB_ROW - 4)}</g></svg>`;
}

function clusters(place) {
  const found = [];
  for (const incident of life.incidents) {
    if (incident.at < view.from || incident.at > view.to) continue;
    const x = place.x(incident.at);
    const last = found[found.length - 1];
    if (last && x - last.x < (last.incidents.length > 1 ? 40 : 24)) last.incidents.push(incident);
    else found.push({ x, incidents: [incident] });
  }
  return found;
}

function drawAxis(box, width) {
  const place = placeOf(width);
  const most = Math.max(2, Math.floor((width - place.left) / 80));
  const step = TICKS_MS.find((each) => (view.to - view.from) / each <= most) ?? TICKS_MS[TICKS_MS.length - 1];
  const parts = [];
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    parts.push(`<text class="quiet" x="${place.x(at).toFixed(1)}" y="14" text-anchor="middle">${momentOf(at, step)}</text>`);
  }
  box.innerHTML = `<svg width="${width}" height="20">${parts.join("")}</svg>`;
}

// As short as the distance of the ticks allows: 0, 20 ms, 1.5 s, 3:20, 2 h 05, 4 d 06 h.
function momentOf(at, step) {
  if (Math.abs(at) < 0.01) return "0";
  if (at < 1000) return `${Number(at.toFixed(1))} ms`;
  const seconds = at / 1000;
  const digits = step < 10 ? 3 : step < 100 ? 2 : step < 1000 ? 1 : 0;
  if (seconds < 60) return `${seconds.toFixed(digits)} s`;
  const whole = Math.floor(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const rest = digits ? (seconds % 60).toFixed(digits).padStart(digits + 3, "0") : two(whole % 60);
  if (seconds < 3600) return `${Math.floor(whole / 60)}:${rest}`;
  if (seconds < 86400) return step < 6e4
    ? `${Math.floor(whole / 3600)}:${two(Math.floor((whole % 3600) / 60))}:${rest}`
    : `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))}`;
  return `${Math.floor(whole / 86400)} d ${two(Math.floor((whole % 86400) / 3600))} h`;
}
