"use strict";
// How is what the server pushes shown? One article for each job; what has not changed is not touched.

const jobs = new Map(); // name → its article
const newest = new Map(); // name → what was pushed of it last
const ACTS = [
  ["stop", "Stop", "Its ranks get SIGTERM, and SIGKILL after the grace period."],
  ["restart", "Restart", "All its workers end and start in a new cycle. It takes nothing from the budget of restarts."],
  ["stacks", "Stacks", ""],
];
const AGAIN_MS = 3000;
const TICK_MS = 1005; // a timer may ring a moment early, and the second would not have passed
let ticking;
const byId = (name) => document.getElementById(name);

function made(name, kind, text) {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = text;
  return element;
}

// A browser starts a tab of its own without our session, unless this page opens it.
function openBeside(event) {
  if (event.button === 2 || !(event.button === 1 || event.ctrlKey || event.metaKey || event.shiftKey)) return;
  event.preventDefault();
  window.open(event.currentTarget.href);
}

function fact(name, value, kind = "") {
  const pair = made("div", kind);
  pair.append(made("dt", "", name), made("dd", "", value));
  return pair;
}

function clock(at) {
  return new Date(at).toLocaleTimeString(undefined, { hour12: false });
}

function long(time) {
  const seconds = Math.max(0, Math.round(time));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function took(job) {
  const seconds = (new Date(job.ended_at ?? job.now) - new Date(job.submitted_at)) / 1000;
  return long(job.is_live ? seconds + (performance.now() - job.came) / 1000 : seconds);
}

function ranksOf(job) {
  const parts = Object.entries(job.rank_states).map(([state, number]) => `${number} ${state}`);
  return `${job.ranks}${parts.length ? ` (${parts.join(", ")})` : ""} on ${job.nodes} ${job.nodes === 1 ? "node" : "nodes"}`;
}

// Its last word was that it runs, and nobody answers for it.
function isLost(job) {
  return !job.is_live && !job.ended_at;
}

function write(article, job) {
  const open = article.querySelector(".news details")?.open ?? job.is_live;
  const head = made("div", "head");
  head.append(made("h2", "", job.job_id), made("span", `state ${job.state}`, isLost(job) ? `${job.state}?` : job.state));
  const link = made("a", "", `Report on ${job.job_id}`);
  link.href = `/report/${encodeURIComponent(job.job_id)}`;
  for (const kind of ["click", "auxclick"]) link.addEventListener(kind, openBeside);
  head.append(link);
  const facts = made("dl", "facts");
  facts.append(
    fact("Ranks", ranksOf(job)),
    fact("Cycle", job.iteration ? `${job.cycle}, iteration ${job.iteration}` : `${job.cycle}`),
    fact("Restarts", `${job.restarts_used} of ${job.max_restarts}`),
    fact("Submitted", new Date(job.submitted_at).toLocaleString(undefined, { hour12: false })),
    fact(job.ended_at ? "Took" : "Age", took(job), "age"),
  );
  if (job.exit_code !== null) facts.append(fact("Exit code", `${job.exit_code}`));
  const body = [head, made("p", "reason", job.reason), facts];
  if (job.odd_ranks.length) {
    const odd = job.odd_ranks.map((rank) => `rank ${rank.rank} (${rank.node}) ${rank.state}`).join(", ");
    body.push(made("p", "quiet", `Not running: ${odd}`));
  }
  replaced(article.querySelector(".body"), "a", body); // Its only link, or its only summary, keeps the focus.
  replaced(article.querySelector(".news"), "summary", job.events.length ? [eventsOf(job, open)] : []);
  const actions = article.querySelector(".actions");
  if (actions) actions.hidden = !job.is_live;
}

function replaced(part, name, inside) {
  const focused = part.contains(document.activeElement);
  part.replaceChildren(...inside);
  if (focused) part.querySelector(name)?.focus({ preventScroll: true });
}

function eventsOf(job, open) {
  const details = made("details");
  details.open = open;
  details.append(made("summary", "", `Newest events (${job.events.length})`));
  const list = made("ul", "events");
  for (const event of job.events) {
    const item = made("li");
    const at = made("time", "", clock(event.at));
    at.dateTime = event.at;
    item.append(at, made("span", event.is_fault ? "fault" : "", event.reason));
    list.append(item);
  }
  details.append(list);
  return details;
}

// What can be done to a job, each time after a question whose usual answer is No. These stay while the rest is replaced.
function actionsOf(job) {
  const actions = made("p", "actions");
  const said = made("p", "said");
  said.setAttribute("role", "status");
  for (const [act, name, effect] of ACTS) {
    const button = made("button", "", name);
    button.type = "button";
    button.setAttribute("aria-label", `${name} ${job.job_id}`);
    button.addEventListener("click", async () => {
      if (effect && !(await isWanted(`${name} job ${job.job_id}?`, effect, name))) return;
      if (!button.dataset.asks) await ask(button, job, act, said);
    });
    actions.append(button);
  }
  return [actions, said];
}

function isWanted(question, effect, yes) {
  const dialog = byId("question");
  byId("asked").textContent = question;
  byId("effect").textContent = effect;
  byId("yes").textContent = yes;
  dialog.returnValue = "no"; // What Escape leaves.
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function ask(button, job, act, said) {
  button.dataset.asks = "yes";
  said.textContent = "asking …";
  const path = `/job/${encodeURIComponent(job.job_id)}/${act}?run=${job.run}`;
  try {
    const response = await signedIn.fetch(path, { method: "POST" });
    const answer = await response.json();
    if (answer.done && act === "stacks") {
      said.textContent = "";
      show(`Stacks of ${job.job_id}`, answer.done);
    } else said.textContent = answer.done ?? answer.error;
  } catch {
    said.textContent = "holdfast web has not answered; look whether it still runs, and reload the page";
  }
  delete button.dataset.asks;
}

function show(name, text) {
  byId("papername").textContent = name;
  byId("text").textContent = text;
  if (!byId("paper").open) byId("paper").showModal();
}

// A name means its newest run, which comes first. Its report would not be that of an earlier run.
function hideEarlierReports(order) {
  const meant = new Set();
  for (const name of order.filter((each) => newest.has(each))) {
    const { job_id } = newest.get(name);
    const link = jobs.get(name).querySelector(".head a");
    if (link) link.hidden = meant.has(job_id);
    meant.add(job_id);
  }
}

function take(news) {
  for (const [name, job] of Object.entries(news.jobs)) {
    if (!jobs.has(name)) {
      const article = made("article", "job");
      article.setAttribute("aria-label", `Job ${job.job_id}`);
      article.append(made("div", "body"), made("p", "silence"), ranksOfJob(), made("div", "news"));
      if (signedIn.mayControl()) article.append(...actionsOf(job));
      jobs.set(name, article);
    }
    job.came = performance.now();
    newest.set(name, job);
    write(jobs.get(name), job);
  }
  for (const [name, look] of Object.entries(news.looks)) takeLook(name, newest.get(name), look);
  for (const name of [...jobs.keys()]) {
    if (!news.order.includes(name)) for (const known of [jobs, newest, looks]) known.delete(name);
  }
  tickFromNow();
  hideEarlierReports(news.order);
  const articles = news.order.map((name) => jobs.get(name)).filter(Boolean);
  const focused = document.activeElement;
  const shown = [...byId("jobs").children];
  if (articles.length !== shown.length || articles.some((article, at) => article !== shown[at])) byId("jobs").replaceChildren(...articles);
  if (focused.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
  byId("none").hidden = articles.length > 0;
  byId("messages").replaceChildren(...news.messages.map((message) => made("li", "", message)));
}

byId("yes").addEventListener("click", () => byId("question").close("yes"));
byId("no").addEventListener("click", () => byId("question").close("no"));
byId("close").addEventListener("click", () => byId("paper").close());

let stream = null;

// Not an EventSource, which cannot send the session.
async function connect() {
  const mine = (stream = new AbortController());
  let text = "connection lost; trying again …";
  try {
    const response = await signedIn.fetch("/stream", { signal: mine.signal });
    if (response.ok) await read(response.body.pipeThrough(new TextDecoderStream()).getReader());
    else {
      text = response.status === 401 ? await response.text() : "not connected; reload the page";
      mine.abort();
    }
  } catch {
    // It is said below.
  }
  if (stream !== mine) return;
  byId("link").textContent = text;
  if (!mine.signal.aborted) setTimeout(() => stream === mine && connect(), AGAIN_MS);
}

async function read(reader) {
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const messages = (waiting + value).split("\n\n");
    waiting = messages.pop();
    for (const message of messages) {
      if (!message.startsWith("data: ")) continue;
      byId("link").textContent = "live";
      try {
        take(JSON.parse(message.slice(6)));
      } catch (error) {
        reportError(error); // It is a mistake of ours, and no fault of the connection.
      }
    }
  }
}

function disconnect() {
  stream?.abort();
  stream = null;
}

async function begin() {
  disconnect();
  await signedIn.ready();
  byId("readonly").hidden = signedIn.mayControl();
  if (!document.hidden) await connect();
}

// Ages advance between two pushes.
function tick() {
  for (const [name, article] of jobs) {
    const job = newest.get(name);
    if (job.is_live) fill(article.querySelector(".age dd"), took(job), () => [took(job)]);
    writeRanks(article, job, looks.get(name));
  }
}

// Ages advance a second after the newest push, then each second: by a clock of its own, a page that is pushed something
// each two seconds would show every other second for a moment only.
function tickFromNow() {
  clearInterval(ticking);
  ticking = setInterval(() => document.hidden || tick(), TICK_MS);
  tick();
}

// A page that nobody sees asks for nothing: for its sake no supervisor is asked for the ages of its ranks.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    disconnect();
    byId("link").textContent = "paused while the page is hidden";
  } else {
    connect();
  }
});
addEventListener("hashchange", () => signedIn.hasNewToken() && begin()); // Somebody opened the printed address here.
begin();
