"use strict";
// Charts of the report: where MFU goes, the roofline, the tree of modules.

// What takes the share of the GPU's peak that steps of these `times` do not reach: [name, share, color of], most first.
function losses(times, report) {
  const all = times.time || 1, steady = report.steady;
  const without = report.losses.filter((loss) => !loss.flops).reduce((total, loss) => total + loss.share, 0);
  const withFlops = report.losses.length ? 1 - without / (steady.compute / steady.time) : 0;
  const compute = times.compute / all, stall = (...names) => names.reduce((total, name) => total + (times.stalls[name] || 0), 0) / all;
  return [
    ["kernels with flops, below peak", compute * withFlops - times.mfu, "compute"],
    ["kernels without flops", compute * (1 - withFlops), "elementwise"],
    ["exposed communication", stall("transfer"), "transfer"], ["late ranks", stall("late rank"), "late-rank"],
    ["pipeline bubbles", stall("pipeline bubble"), "pipeline-bubble"], ["copies", stall("copy"), "copy"],
    ["launch gaps", stall("launch gap"), "launch-gap"],
    ["idle: the host, events, the end", stall("host", "synchronisation", "dependency", "end"), "host"],
  ].filter(([, share]) => Math.abs(share) > 0.0005).sort((a, b) => b[1] - a[1]);
}

// `times`: of the steps and the rank chosen; `of` names them.
function showWaterfall(times, of, report) {
  if (!times || times.mfu === null) return fill("waterfall", element("p", { className: "soft", textContent: "The log does not know the GPU's peak." }));
  const colors = { "": "transparent", peak: "var(--color-end)", MFU: "var(--better)" }, rows = [["peak", { peak: 1 }, "100.0%"]];
  let left = 1;
  for (const [name, share, concept] of losses(times, report)) {
    left -= share;
    colors[name] = `var(--color-${concept})`;
    rows.push([name, { "": Math.max(0, left), [name]: share }, signed(percent)(-share)]);
  }
  rows.push(["MFU", { MFU: times.mfu }, percent(times.mfu)]);
  fill("waterfall", element("p", { className: "soft", textContent: `Of the GPU's peak (${report.metadata.mfu_dtype}), ${of}. Kernels without flops wait for memory as a rule.` }),
    bars(rows, colors, percent));
}

const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes, content = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = content;
  return made;
}

// Operators by flops per byte and FLOP/s, both logarithmic, under the GPU's roofs; areas by time.
function showRoofline(report, details) {
  const points = details.operators.filter((o) => o.flops > 0 && o.bytes > 0 && o.time > 0)
    .map((o) => ({ name: o.name, x: o.flops / o.bytes, y: o.flops / (o.time * 1e-9), share: o.share, cls: o.cls }));
  if (!points.length) return fill("roofline", element("p", { className: "soft", textContent: "No operator with flops and bytes." }));
  const peak = report.metadata.peak_flops[report.metadata.mfu_dtype], bandwidth = report.metadata.extra.memory_bandwidth;
  // As wide as the page has room for, so that letters keep their size; a little room above the roof.
  const [w, h, pad] = [Math.max(300, Math.min(1150, document.getElementById("roofline").clientWidth)), 320, 34];
  const range = (values) => [Math.floor(Math.log10(Math.min(...values))), Math.log10(1.6 * Math.max(...values))];
  const [x0, x1] = range([...points.map((p) => p.x), ...(bandwidth ? [peak / bandwidth] : [])]), [y0, y1] = range([...points.map((p) => p.y), peak]);
  const X = (v) => pad + ((w - 2 * pad) * (Math.log10(v) - x0)) / (x1 - x0), Y = (v) => h - pad - ((h - 2 * pad) * (Math.log10(v) - y0)) / (y1 - y0);
  const chart = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "roofline", class: "chart fitted" });
  const tick = (x, y, words, anchor) => chart.append(svg("text", { x, y, "text-anchor": anchor, class: "tick" }, words));
  for (let e = x0; e <= x1; e++) {
    chart.append(svg("path", { d: `M${X(10 ** e)},${pad}V${h - pad}`, class: "grid" }));
    tick(X(10 ** e), h - pad + 14, `${10 ** e}`, "middle");
  }
  for (let e = y0; e <= y1; e++) {
    chart.append(svg("path", { d: `M${pad},${Y(10 ** e)}H${w - pad}`, class: "grid" }));
    tick(pad + 2, Y(10 ** e) - 3, e >= 12 ? `${10 ** (e - 12)} TFLOP/s` : `${10 ** (e - 9)} GFLOP/s`, "start");
  }
  const ridge = bandwidth ? Math.max(10 ** x0, peak / bandwidth) : 10 ** x0;
  const low = bandwidth ? Math.max(10 ** x0, 10 ** y0 / bandwidth) : 10 ** x0;
  chart.append(svg("path", { d: `${bandwidth ? `M${X(low)},${Y(low * bandwidth)}L` : "M"}${X(ridge)},${Y(peak)}H${w - pad}`, class: "roof" }));
  for (const p of [...points].sort((a, b) => b.share - a.share)) {
    const circle = svg("circle", { cx: X(p.x), cy: Y(p.y), r: 4 + 18 * Math.sqrt(p.share), fill: classColors[p.cls] });
    circle.append(svg("title", {}, `${p.name}: ${(p.y / 1e12).toFixed(1)} TFLOP/s, ${p.x.toFixed(1)} flops a byte, ${percent(p.share)} of device time`));
    chart.append(circle);
  }
  // Names next to the circles, each below the one above it where they would touch.
  let under = 0;
  for (const p of points.slice(0, 6).sort((a, b) => Y(a.y) - Y(b.y))) {
    const offset = 6 + 18 * Math.sqrt(p.share), left = X(p.x) > w - 260;
    under = Math.max(under + 14, Y(p.y) + 4);
    tick(X(p.x) + (left ? -offset : offset), under, p.name.replace("aten::", ""), left ? "end" : "start");
  }
  tick(w - pad, h - 4, "flops a byte", "end");
  fill("roofline", element("p", { className: "soft", textContent: "Operators that take most: how many flops they do for a byte, and how many a second. The line is the GPU's limit; areas are by device time. Causal attention may lie above: torch counts its whole square." }),
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

function showModules(details, memory) {
  const tree = moduleTree(details.modules, memory?.by_module);
  if (!tree.length)
    return fill("modules", element("p", { className: "soft", textContent: "The log does not say which nn.Module ran: phantora trace --modules writes it. Annotations are listed in the breakdown below." }));
  const all = details.classes.reduce((total, c) => total + c.time, 0) || 1;
  const open = (path) => path.split(".").slice(0, -1).every((_, i, parts) => shownModules.has(parts.slice(0, i + 1).join(".")));
  const lines = tree.filter((m) => open(m.path)).slice(0, 400).map((m) => {
    const toggle = element("button", { textContent: m.children ? (shownModules.has(m.path) ? "▾" : "▸") : "·", className: "toggle", disabled: !m.children, title: m.path });
    toggle.addEventListener("click", () => {
      if (!shownModules.delete(m.path)) shownModules.add(m.path);
      showModules(details, memory);
    });
    const name = element("td", { className: "text" }, toggle, m.name);
    name.style.paddingLeft = `${m.depth * 1.1}rem`;
    const bar = element("i");
    bar.style.width = `${(100 * m.time) / all}%`;
    return element("tr", {}, name, element("td", { textContent: duration(m.time) }), element("td", { textContent: percent(m.time / all) }),
      element("td", { className: "share" }, element("div", { className: "bar" }, bar)), element("td", { textContent: m.flops ? m.flops.toExponential(2) : "-" }),
      element("td", { textContent: m.memory ? size(m.memory) : "-" }));
  });
  const head = element("tr", {}, ...["module", "device time", "share", "", "flops", "memory at the peak"].map((title, i) => element("th", { textContent: title, className: i ? "" : "text" })));
  fill("modules", element("p", { className: "soft", textContent: "Forward and backward, with what lies below each; sums over all ranks and steady steps. Memory: what the rank's module allocated and still holds at the peak." }),
    element("div", { className: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines))));
}
