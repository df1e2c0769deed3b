// How does the reader move in the timeline: by keys, buttons, the pointer, a search, or from an incident?

const nodes = readNodes();
const byId = (name) => document.getElementById(name);
const lanes = byId("lanes");
let rows = [];
let chosen = -1;
let isDrawn = false;

function draw() {
  isDrawn = true;
  const width = lanes.clientWidth;
  drawHead(byId("pins"), width);
  drawLanes(lanes, rows, chosen);
  drawAxis(byId("axis"), width);
}

function drawSoon() {
  if (!isDrawn) return;
  isDrawn = false;
  requestAnimationFrame(draw);
}

function look(from, to) {
  const whole = Math.max(life.length, 1);
  const long = Math.min(Math.max(to - from, Math.min(1, whole)), whole);
  view.from = Math.min(Math.max(0, from), whole - long);
  view.to = view.from + long;
  drawSoon();
}

function zoom(factor, around = (view.from + view.to) / 2) {
  look(around - (around - view.from) * factor, around + (view.to - around) * factor);
}

function move(share) {
  const by = (view.to - view.from) * share;
  look(view.from + by, view.to + by);
}

function choose(at, moment) {
  chosen = rows.length ? Math.min(Math.max(at, 0), rows.length - 1) : -1;
  if (chosen >= 0) {
    const top = chosen * ROW;
    if (top < lanes.scrollTop) lanes.scrollTop = top;
    else if (top + ROW > lanes.scrollTop + lanes.clientHeight) lanes.scrollTop = top + ROW - lanes.clientHeight;
    byId("chosen").textContent = described(rows[chosen], moment);
  }
  drawSoon();
}

const LOOKS = { run: "runs", unnoticed: "silent, not noticed yet", stop: "is being stopped", start: "starts", inside: "restarts inside the process", idle: "does not run" };

function described(one, moment) {
  const ran = barsOf(one).filter((bar) => bar.look === "run").reduce((sum, bar) => sum + bar.to - bar.from, 0);
  const share = `${((100 * ran) / Math.max(life.length, 1)).toFixed(1)} %`;
  const last = one.runs[one.runs.length - 1];
  const where = one.node ? `${one.node.ranks.size} ranks` : `on ${last.node}`;
  const failed = one.failures.length ? `${one.failures.length} failed or lost` : "no failure";
  let told = `${one.label}: ${where}, ran ${share} of the time, ${failed}, last ${ENDS[last.end]}`;
  if (moment !== undefined) {
    const bar = barsOf(one).find((each) => each.from <= moment && moment <= each.to);
    told += `; at ${momentOf(Math.max(0, moment), 10)}: ${bar ? LOOKS[bar.look] : "no process"}`;
  }
  return told;
}

function refresh() {
  rows = rowsOf(nodes, byId("find").value.trim(), byId("troubled").checked);
  lanes.style.height = `${Math.max(rows.length, 1) * ROW + 2}px`;
  chosen = -1;
  lanes.scrollTop = 0;
  const wanted = byId("find").value.trim() || byId("troubled").checked;
  byId("chosen").textContent = wanted ? `${rows.length} ${rows.length === 1 ? "lane" : "lanes"} found` : "";
  drawSoon();
}

function toggle(at) {
  const one = rows[at];
  if (!one || !one.node || nodes.length === 1) return;
  one.node.isOpen = !one.node.isOpen;
  rows = rowsOf(nodes, byId("find").value.trim(), byId("troubled").checked);
  lanes.style.height = `${rows.length * ROW + 2}px`;
  choose(at);
}

const KEYS = {
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5),
  "-": () => zoom(2), "0": () => look(0, life.length), ArrowDown: () => choose(chosen + 1), ArrowUp: () => choose(chosen - 1),
  PageDown: () => choose(chosen + 20), PageUp: () => choose(chosen - 20), Home: () => choose(0),
  End: () => choose(rows.length - 1), Enter: () => toggle(chosen),
};

function openIncident(number) {
  const incident = byId(`incident-${number}`);
  if (incident) incident.open = true;
  return incident;
}

function showInTimeline(number) {
  const incident = life.incidents[number - 1];
  const long = Math.max(incident.to - incident.from, 1);
  byId("find").value = incident.ranks.length ? `rank ${incident.ranks[0]}` : incident.node;
  byId("troubled").checked = false;
  refresh();
  look(incident.from - long, incident.to + long);
  choose(rows.findIndex((each) => !each.node));
  byId("timeline").scrollIntoView();
  lanes.focus({ preventScroll: true });
}

function listenToPointer() {
  let held = null;
  lanes.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, from: view.from, to: view.to, hasMoved: false };
  });
  window.addEventListener("pointermove", (event) => {
    if (!held || Math.abs(event.clientX - held.x) < 4 && !held.hasMoved) return;
    held.hasMoved = true;
    const place = placeOf(lanes.clientWidth);
    const by = ((held.x - event.clientX) * (held.to - held.from)) / (place.right - place.left);
    look(held.from + by, held.to + by);
  });
  window.addEventListener("pointerup", (event) => {
    const was = held;
    held = null;
    if (!was || was.hasMoved || !lanes.contains(event.target)) return;
    const box = lanes.getBoundingClientRect();
    const at = Math.floor((event.clientY - box.top - lanes.clientTop + lanes.scrollTop) / ROW);
    const x = event.clientX - box.left - lanes.clientLeft;
    if (at >= rows.length) return;
    const place = placeOf(lanes.clientWidth);
    if (x < place.left) toggle(at);
    choose(at, x < place.left ? undefined : place.at(x));
  });
  lanes.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, placeOf(lanes.clientWidth).at(event.clientX - lanes.getBoundingClientRect().left));
  }, { passive: false });
}

function listen() {
  lanes.addEventListener("keydown", (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  lanes.addEventListener("scroll", drawSoon);
  byId("find").addEventListener("input", refresh);
  byId("troubled").addEventListener("change", refresh);
  byId("controls").addEventListener("submit", (event) => {
    event.preventDefault();
    lanes.focus();
    choose(0);
  });
  const buttons = { earlier: () => move(-0.4), later: () => move(0.4), closer: () => zoom(0.5), wider: () => zoom(2), whole: () => look(0, life.length) };
  for (const [name, act] of Object.entries(buttons)) byId(name).addEventListener("click", act);
  byId("pins").addEventListener("click", (event) => {
    const pin = event.target.closest("a");
    if (!pin) return;
    const first = life.incidents[pin.dataset.first - 1];
    const last = life.incidents[pin.dataset.last - 1];
    if (first === last && openIncident(first.number)) return;
    event.preventDefault();
    const long = Math.max(last.to - first.from, 1);
    look(first.from - long * 0.1, last.to + long * 0.1);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-incident]");
    if (button) showInTimeline(Number(button.dataset.incident));
    const link = event.target.closest('a[href^="#incident-"]');
    if (link && !byId("pins").contains(link)) openIncident(link.hash.slice(10));
  });
  new ResizeObserver(drawSoon).observe(lanes);
  matchMedia("print").addEventListener("change", (event) => {
    if (event.matches) for (const each of document.querySelectorAll("details")) each.dataset.was = each.open;
    for (const each of document.querySelectorAll("details")) each.open = event.matches || each.dataset.was === "true";
  });
}

document.documentElement.classList.add("scripted");
byId("explorer").hidden = false;
listen();
listenToPointer();
refresh();
draw();
if (location.hash.startsWith("#incident-")) openIncident(location.hash.slice(10))?.scrollIntoView();
