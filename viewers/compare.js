"use strict";
// The page of a comparison of machines: speed against count or length, cost against time, the terminal's table.

const ran = data.machines.filter((row) => row.rate !== null);
const unit = data.unit, each = data.vary ? ` at ${data.vary} ` : "";
const colors = Object.fromEntries([...new Set(data.machines.map((row) => row.gpu))].map((gpu, i) => [gpu, ["var(--color-compute)", "var(--color-communication)", "var(--color-elementwise)", "var(--color-optimizer)"][i] ?? `var(--color-${1 + ((i - 4) % NUMBERED)})`]));
const days = (seconds) => (seconds >= 172800 ? `${amount(seconds / 86400)} d` : seconds >= 1800 ? `${amount(seconds / 3600)} h` : seconds >= 1 ? `${amount(seconds)} s` : `${amount(1000 * seconds)} ms`);
const money = (x) => (x === null ? "-" : `$${x >= 100 ? count(x) : Number(x.toPrecision(3))}`);
const short = (number) => (number >= 1024 && number % 1024 === 0 ? `${number / 1024}k` : String(number));
const name = (row) => row.cluster + (data.vary ? `${each}${short(row.value)}` : "");
const width = (id) => document.getElementById(id).clientWidth;

// Speed against the number of GPUs, or the varied option, a line for each model; bars where there is one of each.
function showSpeed() {
  const counts = new Set(ran.map((row) => row.gpus)), values = new Set(ran.map((row) => row.value));
  const numbers = [...values].every((value) => typeof value === "number");
  const of = values.size > 1 && numbers ? "value" : counts.size > 1 ? "gpus" : null;
  fill("speed-title", of === null ? "Speed" : `Speed against ${of === "gpus" ? "the number of GPUs" : data.vary}`);
  const text = (row) => `${name(row)}: ${amount(row.rate)} ${unit}/s${row.error ? ` ± ${percent(row.error)}` : ""}`;
  if (of === null) return fill("speed", bars(ran.map((row) => [name(row), { [row.gpu]: row.rate }, `${amount(row.rate)} ${unit}/s`]), colors, amount));
  const lines = new Map();
  for (const row of ran) {
    const key = `${row.gpu}:${of === "gpus" ? row.value : row.gpus}`;
    lines.set(key, [...(lines.get(key) ?? []), row]);
  }
  const shown = [...lines.values()].map((rows) => rows.sort((a, b) => a[of] - b[of]));
  const linear = of === "gpus" ? shown.filter((rows) => rows.length > 1).map((rows) => ({
    at: [rows[0], rows.at(-1)].map((row) => [row.gpus, (rows[0].rate / rows[0].gpus) * row.gpus]), color: "var(--line)", dashed: true })) : [];
  fill("speed-legend", ...legend(Object.keys(colors), colors).children);
  fill("speed-says", of === "gpus" ? "Dashed: as fast for each GPU as the smallest number of them." : "");
  const points = ran.map((row) => ({ x: row[of], y: row.rate, low: row.error ? row.rate * (1 - row.error) : null, high: row.rate * (1 + (row.error ?? 0)), color: colors[row.gpu], filled: true, title: text(row) }));
  fill("speed", plot(width("speed"), points, [...linear, ...shown.map((rows) => ({ at: rows.map((row) => [row[of], row.rate]), color: colors[rows[0].gpu] }))],
    { title: of === "gpus" ? "GPUs" : data.vary, show: short, ticks: [...new Set(ran.map((row) => row[of]))] }, { title: `${unit}/s`, show: (x) => amount(x) }));
}

// Of the whole job, with failures, where its tokens are known; else of a million tokens.
const job = ran.some((row) => row.time !== null);
const time = (row) => (job ? row.time : 1e6 / row.rate);
const cost = (row) => (job ? row.dollars : row.dollars_per_million);
const better = (a, b) => a.value === b.value && time(a) <= time(b) && cost(a) <= cost(b) && (time(a) < time(b) || cost(a) < cost(b));
const priced = ran.filter((row) => time(row) !== null && cost(row) !== null);
const front = priced.filter((row) => !priced.some((other) => better(other, row)));

// A front for each value of the varied option: machines that no other beats in both.
function showCost() {
  if (!priced.length) return;
  document.getElementById("cost-part").hidden = false;
  fill("cost-says", `${job ? "Of the whole job, with failures, checkpoints and restarts" : `Of a million ${unit}`}. Filled, with a line: the Pareto front, where less time costs more.`);
  const lines = [...new Set(front.map((row) => row.value))].map((value) => ({
    at: front.filter((row) => row.value === value).sort((a, b) => time(a) - time(b)).map((row) => [time(row), cost(row)]), color: "var(--soft)", dashed: true }));
  const points = priced.map((row) => ({ x: time(row), y: cost(row), color: colors[row.gpu], filled: front.includes(row), label: name(row), title: `${name(row)}: ${days(time(row))}, ${money(cost(row))}` }));
  const times = priced.map(time), [scale, word] = [[86400, "d"], [3600, "h"], [1, "s"], [1e-3, "ms"]].find(([s]) => Math.max(...times) >= 2 * s) ?? [1e-3, "ms"];
  const ticks = ticksOf(Math.min(...times) / scale, Math.max(...times) / scale).map((tick) => tick * scale);
  fill("cost", plot(width("cost"), points, lines, { title: "time", show: (seconds) => `${amount(seconds / scale)} ${word}`, ticks }, { title: "dollars", show: money }));
}

fill("title", document.title);
fill("facts", `${ran.length} of ${data.machines.length} machines run it; prices: ${data.priced}`);
fill("verdict", ...data.verdict.map((line) => element("p", { textContent: line })));
showSpeed();
showCost();
fill("table", table(data.machines, [
  ...(data.vary ? [[data.vary, (row) => row.value, String]] : []), ["machine", (row) => row.cluster + (data.best.includes(row.index) ? " ← chosen" : ""), text],
  ["memory", (row) => row.memory, (x) => (x === null ? "-" : size(x))], ["of", (row) => row.capacity, size], ["step", (row) => row.step_time, (x) => (x === null ? "-" : duration(x))], ["±", (row) => row.error, text],
  [`${unit}/s`, (row) => row.rate, (x) => (x === null ? "-" : amount(x))], ["MFU", (row) => row.mfu, percent], ["speed", (row) => row.speedup, (x) => (x === null ? "-" : x.toFixed(2))],
  [`J/${unit.replace(/s$/, "")}`, (row) => row.joules, (x) => (x === null ? "-" : String(Number(x.toPrecision(3))))],
  ["$/h", (row) => row.dollars_per_hour, money], [`$ per M ${unit}`, (row) => row.dollars_per_million, money],
  ...(job ? [["time", (row) => row.time, (x) => (x === null ? "-" : days(x))], ["cost", (row) => row.dollars, money]] : []),
  ["front", (row) => (front.includes(row) ? "yes" : ""), text], ["limited by", (row) => row.limited_by || (row.rate === null ? row.status : ""), text],
], 1000));
