"use strict";
// Small helpers that all pages share: numbers as text, colours, elements, stacked bars.

const data = JSON.parse(document.getElementById("data").textContent);

function duration(ns) {
  for (const [unit, scale, digits] of [["s", 1e9, 3], ["ms", 1e6, 2], ["us", 1e3, 2]])
    if (Math.abs(ns) >= scale) return `${(ns / scale).toFixed(digits)} ${unit}`;
  return `${Math.round(ns)} ns`;
}
function size(bytes) {
  for (const [unit, scale, digits] of [["GiB", 2 ** 30, 2], ["MiB", 2 ** 20, 1], ["KiB", 2 ** 10, 1]])
    if (Math.abs(bytes) >= scale) return `${(bytes / scale).toFixed(digits)} ${unit}`;
  return `${Math.round(bytes)} B`;
}
const percent = (x) => (x === null || x === undefined ? "-" : `${(100 * x).toFixed(1)}%`);
const rate = (x) => (x === null ? "-" : `${(x / 1e9).toFixed(1)} GB/s`);
const count = (x) => Math.round(x).toLocaleString("en");
const signed = (show) => (x) => (x > 0 ? "+" : x < 0 ? "-" : "") + show(Math.abs(x));
// A kernel's name without what all of them have in common.
const kernel = (name) => name.replace(/\(ncclDevKernelArgs[^)]*\)/, "").replace(/^void /, "").replaceAll("at::native::", "").replaceAll("(anonymous namespace)::", "");
// "all_gather" of ncclDevKernel_AllGather_RING_LL, as the terminal names it.
const KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "reduce"];
const collective = (name) => KINDS.find((kind) => name.replaceAll("_", "").toLowerCase().includes(kind.replaceAll("_", ""))) ?? name;
const text = (x) => (x === "" || x === null ? "-" : String(x));

// "0-3, 8" of ranks.
function rangesOf(ranks) {
  const found = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    if (found.length && found.at(-1)[1] === rank - 1) found.at(-1)[1] = rank;
    else found.push([rank, rank]);
  }
  const shown = found.slice(0, 6).map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
  return found.length > 6 ? `${shown}, …` : shown;
}

// Up to four digits: 27.58, 112,983.
const amount = (x) => (Math.abs(x) < 1000 ? String(Number(x.toPrecision(4))) : count(x));

// Name -> colour of style.css; names that it does not have get its numbered colours, in the alphabet's order.
const NUMBERED = 6;
function colorsOf(names) {
  const order = [...new Set(names)].sort();
  return Object.fromEntries(names.map((name) => [name, `var(--color-${name.replace(/[^\w-]+/g, "-")}, var(--color-${1 + (order.indexOf(name) % NUMBERED)}))`]));
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Words with their texts, for a list of definitions.
const definitions = (lines) => lines.flatMap(([word, line]) => [element("dt", { textContent: word }), element("dd", { textContent: line })]);

const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes, content = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = content;
  return made;
}

function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

// `rows`: [label, {part: value}, note]; all on one scale, of `whole`: what is longer is cut and marked.
// `colors`: part -> CSS color.
function bars(rows, colors, show, whole = 0) {
  const length = (parts) => Object.values(parts).reduce((a, b) => a + b, 0);
  whole ||= Math.max(1e-9, ...rows.map(([, parts]) => length(parts)));
  const box = element("div", { className: "bars" });
  for (const [label, parts, note] of rows) {
    const bar = element("div", { className: length(parts) > 1.001 * whole ? "bar cut" : "bar" });
    for (const [part, value] of Object.entries(parts)) {
      if (value <= 0) continue;
      const piece = element("i", { title: `${part}: ${show(value)}` });
      piece.style.width = `${(100 * value) / whole}%`;
      piece.style.background = colors[part];
      bar.append(piece);
    }
    box.append(element("span", { className: "number", textContent: label }), bar, element("span", { className: "number soft", textContent: note }));
  }
  return element("div", { className: rows.length > 24 ? "scroll" : "" }, box);
}

function legend(parts, colors, titles = {}) {
  return element("div", { className: "legend" }, ...parts.map((part) => {
    const swatch = element("i");
    swatch.style.background = colors[part];
    return element("span", { title: titles[part] || "" }, swatch, part);
  }));
}

function options(select, pairs) {
  select.replaceChildren(...pairs.map(([value, label]) => element("option", { value, textContent: label })));
}

// Tabs that show one part of the page each; `drawn` is called with the name of the part that opens. Keys 1 to 9 open
// them, `/` goes to the search of the open part.
function stories(titles, drawn) {
  const part = (name) => document.getElementById(`story-${name}`);
  const names = Object.keys(titles);
  const tabs = names.map((name) => {
    const tab = element("button", { textContent: titles[name], id: `tab-${name}`, type: "button" });
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", `story-${name}`);
    part(name).setAttribute("aria-labelledby", `tab-${name}`);
    tab.addEventListener("click", () => { open(name); history.replaceState(null, "", `#${name}`); });
    return tab;
  });
  function open(name) {
    names.forEach((other, i) => {
      part(other).hidden = other !== name;
      tabs[i].setAttribute("aria-selected", String(other === name));
    });
    drawn(name);
  }
  fill("tabs", ...tabs);
  const typing = (target) => ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName);
  addEventListener("keydown", (event) => {
    if (typing(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = [...document.querySelectorAll("[role=tabpanel] .search")].find((field) => field.offsetParent);
    if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
    tabs[Number(event.key) - 1]?.click();
  });
  open(names.find((name) => location.hash === `#${name}`) ?? names[0]);
}

// Links to what the server behind the page offers.
function navigation(here) {
  const served = data.served;
  if (!served) return;
  const links = [];
  const link = (href, label, current) => {
    const made = element("a", { href, textContent: label });
    if (current) made.setAttribute("aria-current", "page");
    links.push(made);
  };
  const several = Object.keys(served.runs).length > 1;
  for (const [name, path] of Object.entries(served.runs))
    link(`/?run=${name}`, several ? `Report ${name}` : "Report", here === "report" && served.run === name);
  if (several) link("/diff", "Difference", here === "diff");
  if (here !== "diff") {
    link(`/perfetto?run=${served.run}`, "Perfetto UI", here === "perfetto");
    const online = element("a", { href: "https://ui.perfetto.dev", textContent: "Open in ui.perfetto.dev", id: "online" });
    online.addEventListener("click", (event) => {
      event.preventDefault();
      handOver(window.open(`https://ui.perfetto.dev/#!/${expanded()}`), "https://ui.perfetto.dev").catch((error) => alert(error.message));
    });
    links.push(online);
  }
  fill("nav", ...links);
  // The cookie that came with the page holds the token from here on.
  const url = new URL(location.href);
  if (url.searchParams.has("token")) {
    url.searchParams.delete("token");
    history.replaceState(null, "", url);
  }
}

// Perfetto's protocol: ask PING until PONG says that it listens, then post the trace.
async function handOver(target, origin, title = data.title || data.report.path) {
  if (!target) throw new Error("The browser did not open a window: allow pop-ups for this page.");
  const ready = new Promise((resolve) => {
    const ask = setInterval(() => target.postMessage("PING", origin), 200);
    addEventListener("message", function listen(event) {
      if (event.source !== target || event.origin !== origin || event.data !== "PONG") return;
      clearInterval(ask);
      removeEventListener("message", listen);
      resolve();
    });
  });
  const answer = await fetch(`/run.perfetto?run=${data.served.run}`);
  if (!answer.ok) throw new Error(await answer.text());
  const buffer = await answer.arrayBuffer();
  await ready;
  target.postMessage({ perfetto: { buffer, title, keepApiOpen: true } }, origin);
  // Then the typical step, and a little around it. The UI waits for its trace for 4 s, which a long one takes longer.
  if (origin === location.origin) await drawn(target);
  const { start, end } = data.served.typical[data.served.run];
  target.postMessage({ perfetto: { timeStart: start * 1e-9, timeEnd: end * 1e-9, viewPercentage: 0.9 } }, origin);
}

// Until the UI in this frame shows tracks.
async function drawn(target) {
  for (let left = 600; left && !target.document.querySelector("[class*=pf-track__]"); left--) await new Promise((resolve) => setTimeout(resolve, 200));
}

// What makes the UI show the ranks' tracks, not their names alone.
function expanded() {
  const commands = [{ id: "dev.perfetto.ExpandTracksByRegex", args: ["^rank "] }];
  return `?startupCommands=${encodeURIComponent(JSON.stringify(commands))}`;
}
