"use strict";
// How long has each rank been silent? Looks at the ranks are pushed; between two of them the age of a rank advances here,
// if it was already silent at the look before. A rank that beats keeps the age at which it was seen.

const LATE = 0.5; // of its limit: from here on a silence is worth a look
const OLD_S = 10; // without a newer look nobody knows whether a rank is still silent
const looks = new Map(); // of each job: the newest look, when it came, and which ranks were late then

function elapsed(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => `${number}`.padStart(2, "0");
  if (seconds < 10 && !Number.isInteger(seconds)) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

function passedSince(look) {
  return look.aged_s + (performance.now() - look.came) / 1000;
}

function oldAfter(look) {
  return Math.max(OLD_S, 3 * look.every_s);
}

function ageNow(age, look) {
  return age >= look.every_s ? age + Math.min(passedSince(look), oldAfter(look)) : age;
}

// Something that may take only so long: text, share of the limit, and a word if it is late.
function silence(age, limit, look, none) {
  if (age === null) return { text: limit === null ? none : `none yet, limit ${elapsed(limit)}`, share: 0, late: "" };
  const now = ageNow(age, look);
  if (!limit) return { text: elapsed(now), share: 0, late: "" };
  const share = now / limit;
  const late = share >= 1 ? "over its limit" : share >= LATE ? "over half of its limit" : "";
  return { text: `${elapsed(now)} of ${elapsed(limit)}`, share, late };
}

function silencesOf(rank, look) {
  const sections = rank.sections.map((each) => ({ ...silence(each.age_s, each.limit_s, look, ""), name: each.name }));
  return { heartbeat: silence(rank.age_s, rank.limit_s, look, "no heartbeats"), sections };
}

function bar(share) {
  const whole = made("span", "bar");
  whole.setAttribute("aria-hidden", "true");
  const part = made("span");
  part.style.width = `${Math.min(100, Math.round(share * 100))}%`;
  whole.append(part);
  return whole;
}

// The same words with a bar, and with a mark and words where they are late.
function told(found, before = "") {
  const whole = made("span", found.late ? "told late" : "told");
  if (found.share) whole.append(bar(found.share));
  whole.append(before + found.text);
  if (found.late) whole.append(made("strong", "", ` ▲ ${found.late}`));
  return whole;
}

function fill(cell, key, build) {
  if (cell.dataset.key === key) return;
  cell.dataset.key = key;
  cell.replaceChildren(...build());
}

function keyOf(found) {
  return `${found.name ?? ""} ${found.text} ${found.late} ${Math.round(found.share * 100)}`;
}

function writeRank(row, rank, look) {
  const { heartbeat, sections } = silencesOf(rank, look);
  const [name, state, silent, open, node, pid, runs] = row.children;
  const since = rank.runs_s === null ? "" : long(rank.runs_s + (performance.now() - look.came) / 1000);
  fill(name, `${rank.rank}`, () => [`${rank.rank}`]);
  fill(state, rank.state, () => [rank.is_odd ? made("strong", "fault", `▲ ${rank.state}`) : rank.state]);
  fill(silent, keyOf(heartbeat), () => [told(heartbeat)]);
  fill(open, sections.map(keyOf).join(), () => sections.map((each) => told(each, `${each.name} `)));
  fill(node, rank.node, () => [rank.node]);
  fill(pid, `${rank.pid ?? ""}`, () => [`${rank.pid ?? ""}`]);
  fill(runs, since, () => [since]);
  row.classList.toggle("urgent", rank.is_odd || Boolean(heartbeat.late) || sections.some((each) => each.late));
}

// The rank that is nearest to one of its limits.
function mostSilent(look) {
  let most = null;
  for (const rank of look.ranks) {
    const { heartbeat, sections } = silencesOf(rank, look);
    for (const each of [heartbeat, ...sections]) if (each.share && (!most || each.share > most.share)) most = { ...each, rank: rank.rank };
  }
  return most;
}

function whyOld(job, look) {
  if (byId("link").textContent !== "live") return "the connection is lost";
  if (look.is_followed) return "its supervisor has not answered since";
  const others = `${look.jobs_followed} other ${look.jobs_followed === 1 ? "job" : "jobs"}`;
  return `the page follows ${others}, and not this one; holdfast top ${job.job_id} shows it`;
}

function writeSummary(line, job, look) {
  const most = mostSilent(look);
  const passed = passedSince(look);
  if (passed > oldAfter(look)) {
    const old = `▲ Silences as of ${elapsed(passed)} ago: ${whyOld(job, look)}`;
    fill(line, old, () => [made("strong", "", old)]);
  } else if (most) {
    const where = most.name ? `section ${most.name} of rank ${most.rank}, ` : `rank ${most.rank}, `;
    fill(line, where + keyOf(most), () => ["Nearest to its limit: ", told(most, where)]);
  } else fill(line, "none", () => ["No rank has a limit for its silence now."]);
}

function ranksOfJob() {
  const details = made("details", "ranks");
  const scroll = made("div", "scroll");
  const table = made("table");
  const head = made("tr");
  for (const name of ["Rank", "State", "Silent for", "Open sections", "Node", "Process", "Runs for"]) {
    const cell = made("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const heads = made("thead");
  heads.append(head);
  table.append(heads, made("tbody"));
  scroll.append(table);
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  details.append(made("summary"), scroll, made("p", "quiet left"));
  details.addEventListener("toggle", tick);
  return details;
}

function rowsOf(body, ranks) {
  const known = new Map([...body.children].map((row) => [row.dataset.rank, row]));
  const wanted = ranks.map((rank) => {
    if (known.has(`${rank.rank}`)) return known.get(`${rank.rank}`);
    const row = made("tr");
    row.dataset.rank = rank.rank;
    const head = made("th");
    head.scope = "row";
    row.append(head, ...Array.from({ length: 6 }, () => made("td")));
    return row;
  });
  if (wanted.length !== body.children.length || wanted.some((row, at) => row !== body.children[at])) body.replaceChildren(...wanted);
  return wanted;
}

function writeRanks(article, job, look) {
  const details = article.querySelector(".ranks");
  const summary = article.querySelector(".silence");
  details.hidden = summary.hidden = !job.is_live || !look || !look.ranks.length;
  if (details.hidden) return;
  writeSummary(summary, job, look);
  const shown = look.left_out ? `, the ${look.ranks.length} that are nearest to their limits` : "";
  fill(details.querySelector("summary"), `${job.ranks}${shown}`, () => [`Ranks (${job.ranks}${shown})`]);
  if (!details.open) return;
  details.querySelector(".scroll").setAttribute("aria-label", `Ranks of ${job.job_id}`);
  const rows = rowsOf(details.querySelector("tbody"), look.ranks);
  look.ranks.forEach((rank, at) => writeRank(rows[at], rank, look));
  const left = look.left_out ? `${look.left_out} more ranks; holdfast top ${job.job_id} shows all.` : "";
  fill(details.querySelector(".left"), left, () => [left]);
}

// A screen reader is told once when a rank becomes late, not at every second.
function announce(job, look, before) {
  look.late = new Set();
  for (const rank of look.ranks) {
    const { heartbeat, sections } = silencesOf(rank, look);
    const late = [heartbeat, ...sections].find((each) => each.late);
    if (!late || !job) continue;
    const what = `${late.name ? `section ${late.name} of ` : ""}rank ${rank.rank} of job ${job.job_id}: ${late.late}`;
    look.late.add(what);
    if (!before?.late.has(what)) byId("alert").textContent = `${what}, ${late.text}`;
  }
}

function takeLook(name, job, look) {
  look.came = performance.now();
  announce(job, look, looks.get(name));
  looks.set(name, look);
}
