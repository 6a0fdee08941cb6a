"use strict";
// The difference of two runs: times are ns per step, means over ranks; b is compared with a.

const difference = data.difference;

function changes(title, rows, show = duration) {
  if (!rows.length) return;
  const most = Math.max(...rows.map((c) => Math.abs(c.b - c.a)), 1);
  const drawn = rows.slice(0, 20).map((c) => {
    const grown = c.b > c.a;
    return [c.name, { [grown ? "more" : "less"]: Math.abs(c.b - c.a) }, signed(show)(c.b - c.a)];
  });
  section(title, legend(["more", "less"], SIGNS), bars(drawn, SIGNS, show), table(rows, [
    ["name", (c) => c.name, text], ["a", (c) => c.a, show], ["b", (c) => c.b, show], ["change", (c) => c.b - c.a, signed(show)]]));
}

const SIGNS = { more: "var(--worse)", less: "var(--better)" };

function work(title, rows) {
  if (!rows.length) return;
  section(title, table(rows, [
    ["name", (w) => w.name, text], ["calls a", (w) => w.a.count, count], ["calls b", (w) => w.b.count, count], ["time a", (w) => w.a.time, duration],
    ["time b", (w) => w.b.time, duration], ["change", (w) => w.b.time - w.a.time, signed(duration)], ["by count", (w) => w.by_count, signed(duration)],
    ["by shape", (w) => w.by_shape, signed(duration)], ["by duration", (w) => w.by_duration, signed(duration)]]));
}

function section(title, ...content) { into("parts", title, ...content); }

function into(id, title, ...content) {
  document.getElementById(id).append(element("section", {}, element("h2", { textContent: title }), ...content));
}

document.getElementById("headline").textContent = data.headline;
fill("runs", element("div", { textContent: `a ${difference.path_a}: ${duration(difference.step.a)} a step` }),
  element("div", { textContent: `b ${difference.path_b}: ${duration(difference.step.b)} a step` }));
navigation("diff");
if (!difference.equal) {
  const simple = difference.settings.filter(([name]) => data.settings.includes(name));
  into("causes", "Causes", difference.causes.length
    ? element("ul", {}, ...difference.causes.map((c) => element("li", { textContent: `${c.text} (${signed(duration)(c.effect)})` })))
    : element("p", { className: "soft", textContent: "The runs do the same work: no cause to name." }));
  const shown = (name, value) => (name.endsWith("_bytes") && value !== null ? size(value) : value);
  const rate = (c) => (x) => (c.name === "MFU" ? percent(x) : amount(x));
  if (difference.rates.length) section("Throughput", table(difference.rates, [["name", (c) => c.name, text], ["a", (c) => rate(c)(c.a), text],
    ["b", (c) => rate(c)(c.b), text], ["change", (c) => signed(percent)(c.b / c.a - 1), text]]));
  if (simple.length) section("Settings", table(simple, [["setting", ([n]) => n.replaceAll("_", " ").replace(/ bytes$/, ""), text], ["a", ([n, a]) => shown(n, a), text], ["b", ([n, , b]) => shown(n, b), text]]));
  changes("Where the step's time changed", difference.times);
  changes("Device time by class", difference.classes);
  work("Operators", difference.operators);
  work("Collectives", difference.collectives);
  changes("Exposed communication", difference.exposure);
  changes("Memory at the peak", difference.memory, size);
  changes("Compute by rank", difference.ranks);
  changes("Steps", difference.steps);
  for (const [title, names] of [["Only in b", difference.added], ["Only in a", difference.removed]])
    if (names.length) section(title, element("p", { textContent: names.join(", ") }));
}
// Both steps from their beginnings, on one scale; what is done to one is done to the other.
if (data.served && Object.keys(data.served.runs).length === 2) {
  const colors = colorsOf(difference.classes.map((c) => c.name));
  document.getElementById("timelines").hidden = false;
  const pair = ["a", "b"].map((run, i) => new Timeline(run, `${run}-`, colors, (from, to) => pair[1 - i].look(from, to - from)));
  Promise.all(pair.map((chart, i) => chart.show(data.served.typical["ab"[i]].number, null, ""))).then(() => {
    const least = Math.max(...pair.map((chart) => chart.view.rows?.length ?? 0));
    for (const chart of pair) if (chart.view.rows) { chart.view.least = least; chart.look(0, least); }
  });
}
contents();
