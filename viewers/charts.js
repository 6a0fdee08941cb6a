"use strict";
// Charts of the report: from the peak to MFU, the roofline, the tree of modules.

const SMALL = 0.005; // of a whole: less is drawn with the rest

// From the GPU's peak to MFU: the losses of kernels and the time without compute, as the terminal lists them.
function showLost(report) {
  const { mfu } = report.headline, all = report.steady.time;
  if (mfu === null || !report.losses.length || !all || report.details?.fit?.fits === false) return;
  document.getElementById("lost").hidden = false;
  const parts = [
    ...report.losses.map((loss) => [loss.name === "recomputed layers" ? loss.name : `${loss.name}, ${loss.flops ? "below peak" : "no flops"}`, loss.share, loss.name]),
    ...report.delays.map((delay) => [delay.name, delay.time / all, delay.cause]),
  ].sort((a, b) => b[1] - a[1]);
  const large = parts.filter(([, share]) => share >= SMALL), named = large.reduce((sum, [, share]) => sum + share, 0);
  const colors = colorsOf(large.map(([, , concept]) => concept)), rest = 1 - mfu - named;
  const changes = large.map(([name, share, concept]) => [name, -share, colors[concept]]);
  if (Math.abs(rest) > 0.0005) changes.push(["other", -rest, "var(--color-other)"]);
  fill("waterfall", element("p", { className: "soft", textContent: `Shares of the GPU's peak (${report.metadata.mfu_dtype}). Kernels without flops wait for memory as a rule.` }),
    waterfall(["peak", 1, "var(--color-end)"], changes, ["MFU", mfu, "var(--better)"], percent));
}

// Operators by flops per byte and FLOP/s, both logarithmic, under the GPU's roofs; areas by time. Operators without
// flops stand at the left, as far below the slope as they are from the memory's bandwidth.
function showRoofline(report, operators) {
  const { peak_flops: peaks, mfu_dtype: dtype, extra } = report.metadata, bandwidth = extra.memory_bandwidth, peak = peaks[dtype];
  const known = operators.filter((o) => o.time > 0 && o.bytes > 0 && o.cls !== "communication" && peak);
  const points = known.filter((o) => o.flops > 0).map((o) => ({ ...o, x: o.flops / o.bytes, y: o.flops / (o.time * 1e-9) }));
  const plain = bandwidth ? known.filter((o) => !o.flops) : [];
  if (!points.length && !plain.length) return fill("roofline", element("p", { className: "soft", textContent: "The log has no flops and bytes of operators." }));
  // As wide as the page has room for, so that letters keep their size; a little room above the roof.
  const [w, h, pad] = [Math.max(300, Math.min(1150, document.getElementById("roofline").clientWidth)), 340, 34];
  const ridge = bandwidth ? peak / bandwidth : 1, low = Math.min(ridge, ...points.map((p) => p.x));
  const x0 = Math.floor(Math.log10(low)) - (plain.length ? 1 : 0), x1 = Math.log10(2 * Math.max(ridge, ...points.map((p) => p.x)));
  plain.sort((a, b) => a.bytes / a.time - b.bytes / b.time);
  plain.forEach((o, i) => points.push({ ...o, x: 10 ** (x0 + 0.15 + (0.7 * i) / Math.max(1, plain.length - 1)), none: true }));
  for (const p of points) if (p.none) p.y = (p.x * p.bytes) / (p.time * 1e-9);
  const y0 = Math.floor(Math.log10(Math.min(peak, ...points.map((p) => p.y)))), y1 = Math.log10(1.8 * Math.max(peak, ...points.map((p) => p.y)));
  const X = (v) => pad + ((w - 2 * pad) * (Math.log10(v) - x0)) / (x1 - x0), Y = (v) => h - pad - ((h - 2 * pad) * (Math.log10(v) - y0)) / (y1 - y0);
  const chart = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "roofline", class: "chart fitted" });
  const tick = (x, y, words, anchor) => chart.append(svg("text", { x, y, "text-anchor": anchor, class: "tick label" }, words));
  for (let e = x0; e <= x1; e++) {
    chart.append(svg("path", { d: `M${X(10 ** e)},${pad}V${h - pad}`, class: "grid" }));
    if (!plain.length || e > x0) tick(X(10 ** e), h - pad + 14, `${10 ** e}`, "middle");
  }
  for (let e = y0; e <= y1; e++) {
    chart.append(svg("path", { d: `M${pad},${Y(10 ** e)}H${w - pad}`, class: "grid" }));
    tick(pad + 2, Y(10 ** e) - 3, e >= 12 ? `${10 ** (e - 12)} TFLOP/s` : `${10 ** (e - 9)} GFLOP/s`, "start");
  }
  const from = bandwidth ? Math.max(10 ** x0, 10 ** y0 / bandwidth) : 10 ** x0;
  chart.append(svg("path", { d: `${bandwidth ? `M${X(from)},${Y(from * bandwidth)}L` : "M"}${X(ridge)},${Y(peak)}H${w - pad}`, class: "roof" }));
  if (plain.length) tick(X(10 ** (x0 + 0.5)), h - pad + 14, "no flops", "middle");
  const radius = (p) => 4 + 18 * Math.sqrt(p.share), shown = (p) => p.name.replace("aten::", "").slice(0, 30);
  for (const p of [...points].sort((a, b) => b.share - a.share)) {
    const circle = svg("circle", { cx: X(p.x), cy: Y(p.y), r: radius(p), fill: classColors[p.cls] });
    const moved = p.bytes / (p.time * 1e-9), of = bandwidth ? `, ${percent(moved / bandwidth)} of the bandwidth` : "";
    circle.append(svg("title", {}, `${p.name}: ${p.none ? "" : `${(p.y / 1e12).toFixed(1)} TFLOP/s (${percent(p.y / peak)} of the peak), `}${rate(moved)}${of}, ${percent(p.share)} of device time`));
    chart.append(circle);
  }
  // Names next to the largest circles, each below those that it would touch.
  const placed = [];
  for (const p of [...points].sort((a, b) => b.share - a.share).slice(0, w < 500 ? 4 : 8).sort((a, b) => Y(a.y) - Y(b.y))) {
    const left = X(p.x) > w - 210, x = X(p.x) + (left ? -1 : 1) * (radius(p) + 3), width = 6.2 * shown(p).length;
    const [a, b] = left ? [x - width, x] : [x, x + width];
    let y = Y(p.y) + 4;
    for (let other; (other = placed.find((o) => a < o.b && b > o.a && Math.abs(y - o.y) < 13)); ) y = other.y + 13.5;
    placed.push({ a, b, y });
    tick(x, y, shown(p), left ? "end" : "start");
  }
  tick(w - pad, h - 4, "flops a byte", "end");
  fill("roofline", element("p", { className: "soft", textContent: "Operators that take most: flops for a byte, and flops a second. The line is the GPU's limit; areas are by device time. On the slope memory is the limit: operators without flops stand at the left, as far below it as from the bandwidth. Causal attention may lie above: torch counts its whole square." }),
    element("div", { className: "scroll" }, chart), legend([...new Set(points.map((p) => p.cls))], classColors));
}

// [{name, path, depth, time, flops, memory, share, kinds}] of modules named `module: a.b.c`, each with what lies below it.
function moduleTree(works, memory) {
  const found = new Map();
  const at = (path) => {
    if (!found.has(path)) found.set(path, { path, name: path.split(".").at(-1), depth: path.split(".").length - 1, time: 0, flops: 0, memory: 0, children: false });
    return found.get(path);
  };
  const add = (path, values) => {
    const parts = path.split(".");
    for (let i = 1; i <= parts.length; i++) {
      const entry = at(parts.slice(0, i).join("."));
      for (const [name, value] of Object.entries(values)) entry[name] += value;
      if (i < parts.length) entry.children = true;
    }
  };
  for (const work of works) if (work.name.startsWith(MODULE)) add(work.name.slice(MODULE.length), { time: work.time, flops: work.flops });
  for (const [path, bytes] of Object.entries(memory || {})) if (path) add(path, { memory: bytes });
  const order = (a, b) => { // siblings by time, children behind their parent
    const [left, right] = [a.path.split("."), b.path.split(".")];
    for (let i = 0; ; i++) {
      if (i >= left.length || i >= right.length) return left.length - right.length;
      if (left[i] !== right[i]) {
        const [x, y] = [left, right].map((parts) => found.get(parts.slice(0, i + 1).join(".")));
        return y.time - x.time || (x.path < y.path ? -1 : 1);
      }
    }
  };
  return [...found.values()].sort(order);
}

const MODULE = "module: ";
const shownModules = new Set();

// `each`: number of steps of ranks in the sums.
function showModules(details, memory, each) {
  const tree = moduleTree(details.modules, memory?.by_module);
  document.getElementById("modules-part").hidden = !tree.length; // `phantora trace --modules` writes them
  const all = details.classes.reduce((total, c) => total + c.time, 0) || 1;
  const open = (path) => path.split(".").slice(0, -1).every((_, i, parts) => shownModules.has(parts.slice(0, i + 1).join(".")));
  const lines = tree.filter((m) => open(m.path)).slice(0, 400).map((m) => {
    const toggle = element("button", { textContent: m.children ? (shownModules.has(m.path) ? "▾" : "▸") : "·", className: "toggle", disabled: !m.children, title: m.path });
    toggle.addEventListener("click", () => {
      if (!shownModules.delete(m.path)) shownModules.add(m.path);
      showModules(details, memory, each);
    });
    const name = element("td", { className: "text" }, toggle, m.name);
    name.style.paddingLeft = `${m.depth * 1.1}rem`;
    const bar = element("i");
    bar.style.width = `${(100 * m.time) / all}%`;
    return element("tr", {}, name, element("td", { textContent: duration(m.time / each) }), element("td", { textContent: percent(m.time / all) }),
      element("td", { className: "share" }, element("div", { className: "bar" }, bar)), element("td", { textContent: m.flops ? (m.flops / each).toExponential(2) : "-" }),
      element("td", { textContent: m.memory ? size(m.memory) : "-" }));
  });
  const head = element("tr", {}, ...["module", "device time", "share", "", "flops", "memory at the peak"].map((title, i) => element("th", { textContent: title, className: i ? "" : "text" })));
  fill("modules", element("p", { className: "soft", textContent: "Forward and backward, with what lies below each, per rank and step. Memory: what the rank's module allocated and still holds at the peak." }),
    element("div", { className: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines))));
}
