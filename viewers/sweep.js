"use strict";
// The page of a sweep. Every number was computed before; here it is only drawn.

const ran = data.rows.filter((row) => row.rank !== null);
const rest = data.rows.filter((row) => row.rank === null);
const fine = (x) => (x === null ? "-" : x >= 100 ? count(x) : Number(x).toPrecision(3));
const unit = `${data.unit}/s`;
const one = data.unit.replace(/s$/, "");
const dollars = [`$/M ${data.unit}`, (row) => row.cost, fine];
// What points are ranked by: a title, its value, its text.
const asked = {
  speed: [unit, (row) => row.rate, fine], cost: dollars, energy: [`J per ${one}`, (row) => row.joules, fine],
  "per-gpu": [`${unit} a GPU`, (row) => row.rate / row.world, fine], step: ["step", (row) => row.step, duration],
}[data.by];
const numbers = [
  asked,
  ...(["speed", "step"].includes(data.by) ? [] : [[unit, (row) => row.rate, fine]]),
  ["memory", (row) => row.memory, size],
  ["exposed", (row) => row.exposed, percent],
];
if (data.by !== "cost" && ran.some((row) => row.cost !== null)) numbers.push(dollars);

function shape(tag, attributes, title) {
  const made = svg(tag, attributes);
  if (title) made.append(svg("title", {}, title));
  return made;
}

function picture(width, height, kind = "chart") {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: kind });
}

function label(x, y, words, anchor = "middle") {
  const made = shape("text", { x, y, "text-anchor": anchor, "font-size": 11, fill: "currentColor", class: "label" });
  made.textContent = words;
  return made;
}

// 0 the fastest, 1 the slowest.
const place = (row) => (ran.length > 1 ? (row.rank - 1) / (ran.length - 1) : 0);
const color = (row) => (row.rank === null ? "var(--worse)" : `color-mix(in srgb, var(--color-host) ${100 * place(row)}%, var(--better))`);

function scale(values, low, high) {
  const known = values.filter((value) => value !== null);
  const [least, most] = [Math.min(...known), Math.max(...known)];
  return (value) => (most > least ? low + ((value - least) / (most - least)) * (high - low) : (low + high) / 2);
}

function choose(row) {
  fill("chosen-title", row.rank === null ? row.label : `${row.rank}. ${row.label}`);
  fill("chosen", row.why || (row.rank === null ? "" : "Nothing but compute takes more than one per cent of a step."));
  fill("folded", row.fold ? `${row.processes} of ${row.world} ranks ran as processes and stood for the others (${row.fold}). ` : "",
    row.refused ? `It was not folded as asked: ${row.refused}` : "");
  const parts = [row.command];
  if (row.log) parts.push(element("br"), element("a", { href: row.log, textContent: row.log }), " (phantora view)");
  fill("command", ...parts);
}

function clickable(made, row) {
  made.style.cursor = "pointer";
  made.addEventListener("click", () => choose(row));
  return made;
}

// Narrow windows show a part of it, large enough to read.
function scrolled(made) {
  const box = element("div", {}, made);
  box.style.overflowX = "auto";
  return box;
}

// Axes as the layout has them, then the numbers; a line for each point that has all of them.
function lines() {
  const texts = data.axes.map((name) => {
    const words = [...new Set(data.rows.map((row) => row.values[name]).filter((value) => value !== undefined))];
    if (words.every((word) => word !== "" && !Number.isNaN(Number(word)))) words.sort((a, b) => a - b);
    return { name, words, at: (row) => words.indexOf(row.values[name]) };
  });
  const width = Math.max(480, 110 * (texts.length + numbers.length)), height = 320, top = 34, bottom = 290;
  const made = picture(width, height);
  const step = (width - 120) / Math.max(1, texts.length + numbers.length - 1);
  const x = (i) => 60 + i * step, above = [];  // what stands above the lines
  const axes = texts.map(({ name, words, at }, i) => {
    made.append(shape("line", { x1: x(i), x2: x(i), y1: top, y2: bottom, stroke: "var(--line)" }), label(x(i), 16, name));
    const y = scale(words.map((_, k) => k), bottom, top);
    words.forEach((word, k) => above.push(label(x(i) - 6, y(k) + 4, word, "end")));
    return (row) => (at(row) < 0 ? null : y(at(row)));
  });
  numbers.forEach(([name, value, show], k) => {
    const i = texts.length + k;
    const known = data.rows.map(value).filter((one) => one !== null);
    made.append(shape("line", { x1: x(i), x2: x(i), y1: top, y2: bottom, stroke: "var(--line)" }), label(x(i), 16, name));
    const y = scale(known, bottom, top);
    if (known.length) made.append(label(x(i), bottom + 14, show(Math.min(...known))), label(x(i), top - 5, show(Math.max(...known))));
    axes.push((row) => (value(row) === null ? null : y(value(row))));
  });
  for (const row of [...data.rows].reverse()) {
    const points = axes.map((y, i) => [x(i), y(row)]).filter(([, y]) => y !== null);
    if (points.length < 2 || row.status === "skipped") continue;
    made.append(clickable(shape("polyline", {
      points: points.map((point) => point.join(",")).join(" "), fill: "none", stroke: color(row),
      "stroke-width": row.rank === 1 ? 3.5 : 1.8, "stroke-opacity": 0.85,
    }, `${row.rank === null ? row.status : row.rank}. ${row.label}`), row));
  }
  made.append(...above);
  fill("lines", scrolled(made));
}

function scatter() {
  const [name, value, show] = numbers[1 + Number(document.getElementById("against").value)];
  // As wide as there is room for, so that letters keep their size.
  const width = Math.max(300, Math.min(1150, document.getElementById("scatter").clientWidth)), height = 320;
  const left = 70, right = width - 20, top = 15, bottom = 285;
  const made = picture(width, height, "chart fitted");
  const [title, worth, worthShown] = asked;
  const xs = ran.map(value), ys = ran.map(worth);
  const limit = name === "memory" && ran.length ? ran[0].capacity : null;
  const x = scale(limit === null ? xs : [...xs, limit], left + 12, right - 12), y = scale(ys, bottom - 10, top + 10);
  made.append(shape("path", { d: `M${left} ${top}V${bottom}H${right}`, fill: "none", stroke: "var(--line)" }));
  const known = xs.filter((one) => one !== null);
  if (!ran.length || !known.length) return fill("scatter", "None.");
  const [least, most] = [Math.min(...known), Math.max(...known)], near = x(most) - x(least) < 70;
  made.append(
    label(x(least), bottom + 16, show(least), near ? "end" : "middle"), label(x(most), bottom + 16, show(most), near ? "start" : "middle"),
    label((left + right) / 2, bottom + 30, name), label(left - 6, y(Math.min(...ys)) + 4, worthShown(Math.min(...ys)), "end"),
    label(left - 6, y(Math.max(...ys)) + 4, worthShown(Math.max(...ys)), "end"));
  if (limit !== null) made.append(shape("line", { x1: x(limit), x2: x(limit), y1: top, y2: bottom, stroke: "var(--worse)", "stroke-dasharray": "4 3" }));
  for (const row of ran)
    made.append(clickable(shape("circle", {
      cx: x(value(row)), cy: y(worth(row)), r: row.rank === 1 ? 7 : 5, stroke: color(row), "stroke-width": 2,
      fill: row.pareto ? color(row) : "var(--card)",
    }, `${row.rank}. ${row.label}: ${worthShown(worth(row))} (${title}), ${show(value(row))}`), row));
  fill("scatter", scrolled(made));
}

fill("title", document.title);
fill("best-title", `The best by ${asked[0]}`);
fill("asked", asked[0]);
fill("ranked", `Ranked by ${asked[0]}`);
fill("facts", `${ran.length} points ran, ${rest.filter((row) => row.status === "out of memory").length} do not fit, ` +
  `${rest.filter((row) => row.status === "failed").length} failed, ${rest.filter((row) => row.status === "skipped").length} were not run` +
  (data.public && ran.some((row) => row.cost !== null) ? "; dollars: public on-demand prices, the median of providers" : ""));
if (ran.length) {
  const best = ran[0];
  const tile = (name, words, id) => element("div", { className: "tile", id }, element("b", { textContent: words }), name);
  const [title, worth, shown] = asked;
  fill("best", ...(["speed", "step"].includes(data.by) ? [] : [tile(title, shown(worth(best)), "tile-asked")]),
    tile("step", duration(best.step), "tile-step"), tile(unit, fine(best.rate), "tile-rate"), ...(data.by === "cost" || best.cost === null ? [] : [tile(dollars[0], fine(best.cost), "tile-cost")]), tile("MFU", percent(best.mfu), "tile-mfu"),
    tile("memory", size(best.memory), "tile-memory"), tile("exposed", percent(best.exposed), "tile-exposed"));
  const tied = ran.filter((row) => row.tie).length;
  const slower = ran.filter((row) => row.surely).length;
  const notes = [best.label];
  if (tied > 1) notes.push(`The first ${tied} differ by less than the error bar: any of them may be the best`);
  if (slower) notes.push(`${slower} ${slower > 1 ? "are" : "is"} worse by more than the error bars of both, on slower hosts too`);
  fill("ties", [`${notes.join(". ")}.`, ...data.passed_over].join(" "));
  choose(best);
}
options(document.getElementById("against"), numbers.slice(1).map(([name], i) => [String(i), name]));
document.getElementById("against").addEventListener("change", scatter);
lines();
scatter();
const mark = (row) => `${row.rank}${row.tie ? "=" : ""}${row.pareto ? "*" : ""}`;
fill("table", table(ran, [
  ["rank", mark, text], ...data.axes.map((name) => [name, (row) => row.values[name] ?? "-", text]), ["step", (row) => row.step, duration],
  ["±", (row) => row.error, percent], ["behind", (row) => (row.rank > 1 ? row.behind : null), percent],
  ["surely", (row) => (row.surely ? "yes" : ""), text], ...numbers.filter(([name]) => name !== "step"), ["MFU", (row) => row.mfu, percent], ["held up by", (row) => row.why, text],
  ["processes", (row) => (row.fold ? `${row.processes} of ${row.world}` : "all"), text],
], 1000));
document.getElementById("rest-part").hidden = !rest.length;
fill("rest", table(rest, [["layout", (row) => row.label, text], ["status", (row) => row.status, text], ["why", (row) => row.why, text]], 1000));
