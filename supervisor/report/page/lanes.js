"use strict";
// Which lanes are there, and what is drawn in each?
// A run is a process of a rank: it is drawn as the course of the whole job, as far as it lived.

const life = JSON.parse(document.getElementById("life").textContent);
const EXPANDED_RANKS_MAX = 64; // with more ranks, nodes are closed at first
const ENDS = { r: "runs", e: "exited with code 0", f: "failed", s: "was stopped", l: "was lost" };

const silences = life.incidents.filter((incident) => incident.at > incident.from);

function readNodes() {
  const nodes = life.nodes.map((name) => ({ name, ranks: new Map(), failures: 0, isOpen: false }));
  for (const [place, cycle, ranks, starts, ends, how] of life.runs) {
    const node = nodes[place];
    ranks.forEach((rank, at) => {
      const run = { rank, node: node.name, cycle, from: starts[at], to: ends[at], end: how[at] };
      if (!node.ranks.has(rank)) node.ranks.set(rank, []);
      node.ranks.get(rank).push(run);
      node.failures += run.end === "f" || run.end === "l" ? 1 : 0;
    });
  }
  for (const each of life.incidents) {
    for (const node of nodes) {
      if (each.at > each.from && each.ranks.some((rank) => node.ranks.has(rank)) && each.node === node.name) node.failures += 1;
    }
  }
  const total = nodes.reduce((sum, node) => sum + node.ranks.size, 0);
  for (const node of nodes) node.isOpen = total <= EXPANDED_RANKS_MAX;
  // Of many, those that are worth a look come first.
  return total <= EXPANDED_RANKS_MAX ? nodes : nodes.sort((one, other) => other.failures - one.failures);
}

function nodeLane(node) {
  node.lane ??= lane(node.name, [...node.ranks.values()].flat(), node);
  return node.lane;
}

function rankLanes(node) {
  node.rankLanes ??= [...node.ranks.keys()]
    .sort((one, other) => one - other)
    .map((rank) => lane(`rank ${rank}`, node.ranks.get(rank), null));
  return node.rankLanes;
}

function lane(label, runs, node) {
  const failures = runs.filter((run) => run.end === "f" || run.end === "l");
  const wasSilent = silences.some((each) => runs.some((run) => run.cycle === each.cycle && each.ranks.includes(run.rank)));
  return { label, runs, node, failures, isTroubled: failures.length > 0 || wasSilent, bars: null };
}

// Written when the lane is first seen: of thousands, few are.
function barsOf(one) {
  if (one.bars) return one.bars;
  const byCycle = new Map();
  for (const run of one.runs) {
    const known = byCycle.get(run.cycle);
    if (!known) byCycle.set(run.cycle, { from: run.from, to: run.to, runs: [run] });
    else {
      known.from = Math.min(known.from, run.from);
      known.to = Math.max(known.to, run.to);
      known.runs.push(run);
    }
  }
  one.bars = [...byCycle.entries()].flatMap(([cycle, part]) => clippedCourse(cycle, part));
  return one.bars;
}

function clippedCourse(cycle, part) {
  const own = silences.filter(
    (each) => each.cycle === cycle && part.runs.some((run) =>
      each.ranks.includes(run.rank) || (!each.ranks.length && each.node === run.node)),
  );
  const bars = [];
  for (let at = firstAfter(part.from); at < life.course.length; at += 1) {
    const [look, from, to, isJustAlive] = life.course[at];
    if (from >= part.to) break;
    let shown = isJustAlive ? "run" : look;
    if (shown === "unnoticed" && !own.some((each) => each.from <= from && from <= each.at)) shown = "run";
    const last = bars[bars.length - 1];
    if (last && last.look === shown && last.to === from) last.to = Math.min(to, part.to);
    else bars.push({ look: shown, from: Math.max(from, part.from), to: Math.min(to, part.to) });
  }
  return bars;
}

function firstAfter(from) {
  let low = 0;
  let high = life.course.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (life.course[middle][2] > from) high = middle;
    else low = middle + 1;
  }
  return low;
}

// What the reader looks for: "12", "rank 12" or a part of a node's name.
function rowsOf(nodes, wanted, onlyTroubled) {
  const rank = /^(?:rank\s*)?(\d+)$/i.exec(wanted);
  const name = wanted.toLowerCase();
  const rows = [];
  for (const node of nodes) {
    if (onlyTroubled && !node.failures) continue;
    const hasRank = rank !== null && node.ranks.has(Number(rank[1]));
    if (wanted && !hasRank && !node.name.toLowerCase().includes(name)) continue;
    if (nodes.length > 1) rows.push(nodeLane(node));
    if (node.isOpen || nodes.length === 1 || hasRank) {
      const all = rankLanes(node).filter((each) => !onlyTroubled || each.isTroubled);
      rows.push(...(hasRank && !node.name.toLowerCase().includes(name)
        ? all.filter((each) => each.label === `rank ${Number(rank[1])}`) : all));
    }
  }
  return rows;
}
