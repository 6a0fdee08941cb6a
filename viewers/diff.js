"use strict";
// The difference of two runs, as difference, time, kernels and memory: times are ns per step, means over ranks; b is
// compared with a.

const difference = data.difference;

function changes(id, title, rows, show = duration) {
  if (!rows.length) return;
  const most = Math.max(...rows.map((c) => Math.abs(c.b - c.a)), 1);
  const drawn = rows.slice(0, 20).map((c) => {
    const grown = c.b > c.a;
    return [c.name, { [grown ? "more" : "less"]: Math.abs(c.b - c.a) }, signed(show)(c.b - c.a)];
  });
  into(id, title, legend(["more", "less"], SIGNS), bars(drawn, SIGNS, show), table(rows, [
    ["name", (c) => c.name, text], ["a", (c) => c.a, show], ["b", (c) => c.b, show], ["change", (c) => c.b - c.a, signed(show)]]));
}

const SIGNS = { more: "var(--worse)", less: "var(--better)" };

function work(id, title, rows) {
  if (!rows.length) return;
  into(id, title, table(rows, [
    ["name", (w) => w.name, text], ["calls a", (w) => w.a.count, count], ["calls b", (w) => w.b.count, count], ["time a", (w) => w.a.time, duration],
    ["time b", (w) => w.b.time, duration], ["change", (w) => w.b.time - w.a.time, signed(duration)], ["by count", (w) => w.by_count, signed(duration)],
    ["by shape", (w) => w.by_shape, signed(duration)], ["by duration", (w) => w.by_duration, signed(duration)]]));
}

function into(id, title, ...content) {
  document.getElementById(id).append(element("section", {}, element("h2", { textContent: title }), ...content));
}

document.getElementById("headline").textContent = data.headline;
fill("runs", element("div", { textContent: `a ${difference.path_a}: ${duration(difference.step.a)} a step` }),
  element("div", { textContent: `b ${difference.path_b}: ${duration(difference.step.b)} a step` }));
navigation("diff");
if (!difference.equal) {
  showWaterfall();
  const simple = difference.settings.filter(([name]) => data.settings.includes(name));
  into("causes", "Causes", difference.causes.length
    ? element("ul", {}, ...difference.causes.map((c) => element("li", { textContent: `${c.text}${c.effect ? ` (${signed(duration)(c.effect)})` : ""}` })))
    : element("p", { className: "soft", textContent: "The runs do the same work: no cause to name." }));
  const shown = (name, value) => (name.endsWith("_bytes") && value !== null ? size(value) : value);
  const share = (c) => c.name === "MFU" || c.name === "HFU", points = (x) => `${(100 * x).toFixed(1)} points`;
  const rate = (c) => (x) => (share(c) ? percent(x) : amount(x));
  if (difference.rates.length) into("causes", "Throughput", table(difference.rates, [["name", (c) => c.name, text], ["a", (c) => rate(c)(c.a), text],
    ["b", (c) => rate(c)(c.b), text], ["change", (c) => (share(c) ? signed(points)(c.b - c.a) : signed(percent)(c.b / c.a - 1)), text]]));
  if (simple.length) into("causes", "Settings", table(simple, [["setting", ([n]) => n.replaceAll("_", " ").replace(/ bytes$/, ""), text], ["a", ([n, a]) => shown(n, a), text], ["b", ([n, , b]) => shown(n, b), text]]));
  changes("times", "Exposed communication", difference.exposure);
  work("times", "Collectives", difference.collectives);
  changes("times", "Compute by rank", difference.ranks);
  changes("kernels", "Device time by class", difference.classes);
  work("kernels", "Operators", difference.operators);
  for (const [title, names] of [["Only in b", difference.added], ["Only in a", difference.removed]])
    if (names.length) into("kernels", title, element("p", { textContent: names.join(", ") }));
  changes("memory", "Memory at the peak", difference.memory, size);
}

// Compute and each cause of time without it, from the step of a to that of b.
function showWaterfall() {
  const { a, b } = difference.step, least = 0.002 * a;
  const large = difference.times.filter((c) => Math.abs(c.b - c.a) >= least), small = b - a - large.reduce((sum, c) => sum + c.b - c.a, 0);
  const changes = large.map((c) => [c.name, c.b - c.a, c.b > c.a ? SIGNS.more : SIGNS.less]);
  if (Math.abs(small) >= 1e-4 * a) changes.push(["smaller changes", small, small > 0 ? SIGNS.more : SIGNS.less]);
  let level = a, lowest = Math.min(a, b);
  for (const [, change] of changes) lowest = Math.min(lowest, (level += change));
  // Small changes of a long step are seen on an axis that begins late.
  const base = Math.max(0, roundDown(lowest - 3 * Math.max(...changes.map(([, change]) => Math.abs(change)), 0.01 * a)));
  document.getElementById("from-a-to-b").hidden = false;
  fill("waterfall", element("p", { className: "soft", textContent: `A step, mean over ranks. Communication counts as far as nothing computes.${base ? ` The axis begins at ${duration(base)}.` : ""}` }),
    waterfall(["a", a, "var(--color-end)"], changes, ["b", b, "var(--color-end)"], duration, base));
}

// Two digits of a number, not more than it.
function roundDown(number) {
  const digit = 10 ** Math.max(0, Math.floor(Math.log10(Math.max(1, number))) - 1);
  return Math.floor(number / digit) * digit;
}

// Groups of ranks of a run that are equal in a step; null where all are shown.
async function equalRanks(run, step) {
  const answer = await fetch(`/equal-ranks.json?run=${run}&step=${step}`).catch(() => null);
  const groups = answer?.ok ? await answer.json() : [];
  return groups.length ? groups.map((ranks) => ({ ranks })) : null;
}

// Both steps from their beginnings, on one scale, in the same colours; what is done to one is done to the other.
async function showTimelines(pair) {
  const step = document.getElementById("step").value;
  await Promise.all(pair.map(async (chart, i) => {
    const own = step === "" ? data.served.typical["ab"[i]].number : Number(step);
    await chart.show(own, null, "", await equalRanks("ab"[i], own));
  }));
  const shown = pair.filter((chart) => chart.view.rows), least = Math.max(...shown.map((chart) => chart.view.rows.length));
  for (const chart of shown) { chart.view.least = least; chart.look(0, least); }
  fill("timelines-legend", ...legend([...new Set(shown.flatMap((chart) => chart.view.rows.classes))].sort(), pair[0].colors).children);
}

let pair = null;
if (data.served && Object.keys(data.served.runs).length === 2) {
  const colors = colorsOf(difference.classes.map((c) => c.name)), { a, b } = data.served.steps, both = a.filter((number) => b.includes(number));
  document.getElementById("timelines").hidden = false;
  options(document.getElementById("step"), [...(both.length ? [] : [["", "typical of each"]]), ...both.map((number) => [number, `${number} of both`])]);
  const typical = data.served.typical.a.number;
  document.getElementById("step").value = both.includes(typical) ? typical : both[Math.floor(both.length / 2)] ?? "";
  pair = ["a", "b"].map((run, i) => new Timeline(run, `${run}-`, colors, (from, to) => pair[1 - i].look(from, to - from), false));
  document.getElementById("step").addEventListener("change", () => showTimelines(pair));
  showTimelines(pair);
}
const filled = { time: pair || document.getElementById("times").children.length, kernels: difference.classes.length, memory: difference.memory.length };
const titles = { time: "Time", kernels: "Kernels", memory: "Memory" };
stories({ verdict: "Difference", ...Object.fromEntries(Object.entries(titles).filter(([name]) => filled[name])) }, (name) => {
  document.getElementById("choices").hidden = name !== "time" || !pair;
  if (name === "time") pair?.forEach((chart) => chart.redraw());
});
