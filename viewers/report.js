"use strict";
// The report page. Every number is the report's own; nothing is computed here but shares and sums.

const report = data.report;
const details = report.details;
const css = (name) => `var(--${name})`;
const COLORS = {
  compute: css("compute"), transfer: css("transfer"), "late rank": css("late"), "pipeline bubble": css("bubble"),
  copy: css("copy"), host: css("host"), synchronisation: css("synchronisation"), dependency: css("dependency"),
  "launch gap": css("gap"), end: css("end"),
};
const classNames = [...new Set([...details.classes.map((c) => c.name), ...Object.keys(report.by_class)])];
const classColors = colorsOf(classNames);

const select = (id) => document.getElementById(id);
const parts = (times) => ({ compute: times.compute, ...times.stalls });

// Mean over a rank's steady steps, as the report's own mean over ranks.
function mean(steady) {
  const sum = (pick) => steady.reduce((total, times) => total + pick(times), 0) / steady.length;
  const times = {};
  for (const name of ["time", "compute", "communication", "overlapped", "exposed", "copy", "idle", "waiting", "flops"]) times[name] = sum((t) => t[name]);
  times.stalls = Object.fromEntries(Object.keys(data.causes).map((cause) => [cause, sum((t) => t.stalls[cause] || 0)]));
  times.mfu = steady[0].mfu === null ? null : steady.reduce((total, t) => total + t.mfu * t.time, 0) / steady.reduce((total, t) => total + t.time, 0);
  times.overlap = times.communication ? times.overlapped / times.communication : null;
  for (const name of ["peak_allocated", "peak_reserved"]) times[name] = Math.max(...steady.map((t) => t[name]));
  return times;
}

function timesOf(rank, step) {
  const steps = rank === null ? report.steps : report.ranks.find((r) => r.rank === rank).steps;
  if (step !== null) return steps.find((s) => s.number === step)?.times;
  const steady = steps.filter((s) => !s.note);
  return rank === null ? report.steady : steady.length ? mean(steady.map((s) => s.times)) : undefined;
}

function tile(label, value, id) {
  return element("div", { className: "tile soft" }, element("b", { textContent: value, id: `tile-${id}`, style: "color:var(--text)" }), label);
}

function showTimes(rank, step) {
  const times = timesOf(rank, step);
  const where = rank === null ? "mean over ranks" : `rank ${rank}`;
  select("tiles-title").textContent = `${step !== null ? `Step ${step}` : report.step_source === "run" ? "The run" : report.steps.length > 1 ? "Mean of the steady steps" : "The step"}, ${where}`;
  if (!times) return fill("tiles", "This rank has no such step.");
  const typical = rank === null && step === null && report.step_source !== "run";
  const tiles = [
    tile(typical ? "settled step" : report.step_source === "run" ? "first to last" : "step time", duration(typical ? report.headline.step_time : times.time), "time"), tile("compute", percent(times.compute / times.time), "compute"),
    tile("communication hidden", percent(times.overlap), "overlap"), tile("exposed", duration(times.exposed), "exposed"),
    tile("idle", percent(times.idle / times.time), "idle"), tile(`MFU (${report.metadata.mfu_dtype})`, percent(typical ? report.headline.mfu : times.mfu), "mfu"),
    tile("peak allocated", size(times.peak_allocated), "peak"), tile("peak reserved", size(times.peak_reserved), "reserved"),
  ];
  const { throughput } = report.headline;
  if (throughput && step === null) {
    if (throughput.tokens_per_second) tiles.push(tile("tokens/s of the job", count(throughput.tokens_per_second), "tokens"));
    if (throughput.samples_per_second) tiles.push(tile("samples/s of the job", amount(throughput.samples_per_second), "samples"));
  }
  fill("tiles", ...tiles);
  const note = report.steps.find((s) => s.number === step)?.note;
  fill("headline", step === null ? headline() : note ? `Set apart from the steady steps: ${note}.` : "");
}

// What the steady steps say, with the error bar of the model.
function headline() {
  const h = report.headline;
  const bar = h.error === null ? "" : ` (-${percent(h.error)} +${percent(h.error_above)})`;
  const apart = Object.entries(h.apart).map(([note, steps]) => `${note}: ${steps.join(", ")}`).join("; ");
  if (report.step_source === "run") return `${duration(h.step_time)} from first to last: no steps were found in this run.`;
  const of = !h.settled ? "settled, by the power model: the run ends before"
    : h.steps > 1 ? `mean of ${h.steps} steady steps, ${duration(h.lowest)} to ${duration(h.highest)}` : "one step";
  return `${duration(h.step_time)}${bar} a step, ${of}.${apart ? ` Set apart: ${apart}.` : ""}`;
}

const causes = () => legend(Object.keys(COLORS), COLORS, { compute: "at least one kernel that is not communication runs", ...data.causes });

function showBars(rank, step) {
  const rows = report.ranks.map((r) => [r.rank, timesOf(r.rank, step)]).filter(([, t]) => t);
  fill("by-rank", causes(), bars(rows.map(([r, t]) => [`rank ${r}`, parts(t), duration(t.time)]), COLORS, duration));
  const every = rank === null ? report.steps : report.ranks.find((r) => r.rank === rank).steps;
  const steps = every.length > 1 ? every.filter((s) => s.note !== "start-up") : every; // it would dwarf the others
  const without = every.length > steps.length ? [element("p", { className: "soft", textContent: `Without start-up: ${every.filter((s) => s.note === "start-up").map((s) => `step ${s.number}, ${duration(s.times.time)}`).join("; ")}.${steps.some((s) => s.note) ? " * set apart." : ""}` })] : [];
  fill("by-step", ...without, causes(), bars(steps.map((s) => [`step ${s.number}${s.note ? "*" : ""}`, parts(s.times), duration(s.times.time)]), COLORS, duration));
  fill("overlap", table(rows, [
    ["rank", ([r]) => r, String], ["time", ([, t]) => t.time, duration], ["compute", ([, t]) => t.compute, duration],
    ["communication", ([, t]) => t.communication, duration], ["overlapped", ([, t]) => t.overlapped, duration],
    ["exposed", ([, t]) => t.exposed, duration], ["overlap", ([, t]) => t.overlap, percent], ["waiting", ([, t]) => t.waiting, duration],
    ["idle", ([, t]) => t.idle, duration], ["MFU", ([, t]) => t.mfu, percent],
  ], 2000));
}

function shares(values, colors) {
  return bars(Object.entries(values).map(([name, share]) => [name || "none", { [name]: share }, percent(share)]), colors, percent);
}

function showClasses(rank) {
  const sums = rank === null ? report.by_class : report.ranks.find((r) => r.rank === rank).by_class;
  const all = Object.values(sums).reduce((a, b) => a + b, 0) || 1;
  fill("classes", shares(Object.fromEntries(Object.entries(sums).sort((a, b) => b[1] - a[1]).map(([n, v]) => [n, v / all])), classColors));
  const rests = Object.entries(report.by_provenance);
  fill("provenance", shares(report.by_provenance, Object.fromEntries(rests.map(([n], i) => [n, PALETTE[i % PALETTE.length]]))),
    ...(report.guesses.length ? [element("p", { textContent: "Costliest that are not measured:" }), table(report.guesses, [
      ["operator", (g) => g.operator, text], ["rests on", (g) => g.provenance, text], ["share", (g) => g.share, percent], ["error", (g) => g.error, percent]], 20)] : []));
}

const WORK = { kernels: "Kernels", operators: "Operators", modules: "Modules (annotations)", classes: "Classes" };

function showWork() {
  const cls = select("class").value;
  const rows = details[select("work").value].filter((w) => !cls || w.cls === cls || (select("work").value === "classes" && w.name === cls));
  fill("works", element("p", { className: "soft", textContent: "Sums over all ranks and steps reported on; waits for peers left out." }), table(rows, [
    ["name", (w) => kernel(w.name), text], ["class", (w) => w.cls, text], ["count", (w) => w.count, count], ["time", (w) => w.time, duration],
    ["share", (w) => w.share, percent], ["flops", (w) => w.flops, (x) => (x ? x.toExponential(2) : "-")], ["rests on", (w) => w.provenance, text]], 50));
}

function showCommunication() {
  fill("exposure", table(report.exposure, [
    ["collective", (e) => kernel(e.collective), text], ["of", (e) => e.group, text], ["awaited by", (e) => e.waited_by, text],
    ["exposed", (e) => e.exposed, duration], ["late rank", (e) => e.late_rank, duration]]));
  fill("collectives", table(details.collectives, [
    ["collective", (c) => kernel(c.name), text], ["of", (c) => c.group, text], ["algorithm", (c) => c.algorithm, text], ["calls", (c) => c.count, count],
    ["size", (c) => c.bytes, size], ["wait", (c) => c.wait, duration], ["transfer", (c) => c.transfer, duration],
    ["algorithm bw", (c) => c.algorithm_bandwidth, rate], ["bus bw", (c) => c.bus_bandwidth, rate], ["skew", (c) => c.skew, duration],
    ["last", (c) => (c.last < 0 ? "-" : `rank ${c.last}`), String]]));
  fill("stragglers", table(details.stragglers, [
    ["rank", (s) => s.rank, String], ["caused a step", (s) => s.caused, duration], ["waited itself", (s) => s.waited, duration], ["came last", (s) => s.last, count]]));
  const shades = { "used, mean of a step": css("transfer"), "used at most": css("end") };
  fill("links", ...(details.links.length ? [
    element("p", { className: "soft", textContent: "Share of each link's bandwidth, the most used first." }), legend(Object.keys(shades), shades),
    bars(details.links.slice(0, 12).map((l) => [l.name, { "used, mean of a step": l.utilisation, "used at most": l.peak - l.utilisation }, percent(l.utilisation)]),
      shades, percent),
    table(details.links, [
      ["link", (l) => l.name, text], ["bandwidth", (l) => l.bandwidth, rate], ["bytes a step", (l) => l.bytes, size], ["busy a step", (l) => l.busy, duration],
      ["used", (l) => l.utilisation, percent], ["used at most", (l) => l.peak, percent]])]
    : [element("p", { className: "soft", textContent: "The log does not say what links carried: phantora trace --flows and phantora replay --flows write it." })]));
}

function showStreams(rank) {
  const rows = details.streams.filter((s) => rank === null || s.rank === rank);
  fill("streams", element("p", { className: "soft", textContent: "Idle time of each stream as HolisticTraceAnalysis splits it; sums over all that is reported on." }), table(rows, [
    ["rank", (s) => s.rank, String], ["stream", (s) => s.name || `stream ${s.stream}`, text], ["busy", (s) => s.busy, duration], ["host wait", (s) => s.host_wait, duration],
    ["kernel wait", (s) => s.kernel_wait, duration], ["other", (s) => s.other, duration]]));
}

function showMemory(rank) {
  const own = details.memory.find((m) => m.rank === rank) || details.memory[0];
  if (!own) return fill("memory", "The log has no memory rows.");
  select("memory-rank").textContent = own.rank;
  const [w, h] = [1000, 200];
  const points = own.timeline;
  const [from, to] = [points[0]?.[0] ?? 0, points.at(-1)?.[0] ?? 1];
  const most = Math.max(own.peak_reserved, own.peak_allocated, 1);
  const x = (t) => (w * (t - from)) / Math.max(1, to - from);
  const y = (v) => h - (h * v) / most;
  const line = (column) => points.map((p, i) => (i ? `H${x(p[0]).toFixed(1)}V` : `M${x(p[0]).toFixed(1)},`) + y(p[column]).toFixed(1)).join("");
  const chart = svg("svg", { viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", role: "img", "aria-label": "memory over time" });
  const uses = Object.keys(own.timeline_by_category);
  const names = [...new Set([...uses, ...Object.keys(own.by_category)])];
  const colors = Object.fromEntries(names.map((n, i) => [n, PALETTE[i % PALETTE.length]]));
  // Categories lie on each other: each is drawn from zero to the sum of itself and those below, the highest first.
  const below = points.map(() => 0);
  const areas = uses.map((name) => {
    own.timeline_by_category[name].forEach((bytes, i) => (below[i] += bytes));
    const top = points.map((p, i) => (i ? `H${x(p[0]).toFixed(1)}V` : `M${x(p[0]).toFixed(1)},`) + y(below[i]).toFixed(1)).join("");
    return svg("path", { d: `${top}H${w}V${h}H0Z`, fill: colors[name] });
  });
  chart.append(
    ...areas.reverse(),
    svg("path", { d: line(2), fill: "none", stroke: "var(--dependency)", "vector-effect": "non-scaling-stroke" }),
    svg("path", { d: `M${x(own.peak_time)},0V${h}`, stroke: "var(--late)", "stroke-dasharray": "4", "vector-effect": "non-scaling-stroke" }),
  );
  const marks = { reserved: css("dependency"), peak: css("late") };
  fill("memory", legend([...uses, ...Object.keys(marks)], { ...colors, ...marks }),
    chart, element("p", { className: "soft", textContent: `${duration(from)} to ${duration(to)}; the top of the chart is ${size(most)} of ${size(own.capacity)}.` }),
    element("p", { textContent: `${details.fit?.fits === false && own.failed ? "When the allocation failed" : "At the peak"} (${own.peak_step === null ? "outside the steps" : `step ${own.peak_step}`}, ${duration(own.peak_time)}): ${size(own.peak_allocated)} allocated, ${size(own.peak_reserved)} reserved.${own.lowest_peak < own.highest_peak ? ` By chance (when NCCL's watchdog frees buffers) ${size(own.lowest_peak)} to ${size(own.highest_peak)}.` : ""}` }),
    ...(details.fit ? [element("p", { textContent: details.fit.says.join(" ") })] : []),
    bars(Object.entries(own.by_category).map(([name, bytes]) => [name, { [name]: bytes }, size(bytes)]), colors, size),
    table(own.largest, [
      ["largest blocks at the peak", (b) => b.operator || "outside of operators", text], ["made at", (b) => b.site, text],
      ["module", (b) => b.module, text], ["shapes", (b) => b.shape, text],
      ["hold", (b) => b.category, text], ["blocks", (b) => b.count, String], ["bytes", (b) => b.bytes, size],
    ], 20));
}

// A run that did not fit begins with it.
function showOutOfMemory(fit) {
  if (!fit || fit.fits) return;
  select("out-of-memory").hidden = false;
  fill("out-of-memory-says", ...fit.says.map((line) => element("p", { textContent: line })));
}

function pathOf(step) {
  const paths = details.critical_paths;
  return step !== null ? paths.find((p) => p.step === step) : paths.find((p) => p.gain) || paths.at(-1);
}

function showPath(step) {
  const path = pathOf(step);
  select("path-step").textContent = path ? path.step : step;
  if (!path) return fill("path", "The report has no path of this step.");
  const row = (values) => table(Object.entries(values).sort((a, b) => b[1] - a[1]), [
    ["", ([n]) => kernel(n), text], ["on the path", ([, v]) => v, duration], ["share", ([, v]) => v / path.length, percent]], 12);
  const classes = Object.entries(path.by_class).sort((a, b) => b[1] - a[1]);
  const own = Object.fromEntries(classes.map(([n]) => [n, classColors[n] || (n === "host" ? css("host") : n === "delay" ? css("late") : css("dependency"))]));
  fill("path",
    element("p", { textContent: `${duration(path.length)}, from rank ${path.start_rank} to rank ${path.end_rank}; ${count(path.segments)} segments.` }),
    legend(classes.map(([n]) => n), own), bars([["", path.by_class, duration(path.length)]], own, duration),
    table(classes, [["class", ([n]) => n, text], ["on the path", ([, v]) => v, duration], ["share", ([, v]) => v / path.length, percent],
      ["gain if free", ([n]) => (path.gain && n in path.gain ? path.gain[n] : null), (x) => (x === null ? "-" : duration(x))]]),
    ...(path.gain ? [] : [element("p", { className: "soft", textContent: "Gains are computed for the step of median length, and for a step asked for alone (--steps)." })]),
    element("h2", { textContent: "By rank", style: "margin-top:.8rem" }), row(path.by_rank),
    ...(Object.keys(path.by_collective).length ? [element("h2", { textContent: "By collective", style: "margin-top:.8rem" }), row(path.by_collective)] : []),
    ...(Object.keys(path.by_host).length ? [element("h2", { textContent: "By host", style: "margin-top:.8rem" }), row(path.by_host)] : []));
}

function show() {
  const number = (id) => (select(id).value === "" ? null : Number(select(id).value));
  const [rank, step] = [number("rank"), number("step")];
  showTimes(rank, step);
  showBars(rank, step);
  showClasses(rank);
  showWork();
  showStreams(rank);
  showMemory(rank);
  showModules(details, details.memory.find((m) => m.rank === rank) || details.memory[0]);
  showPath(step);
  if (chart) chart.show(step ?? pathOf(null)?.step ?? report.steps.at(-1).number, rank, select("class").value);
}

const chart = data.served ? new Timeline(data.served.run, "", classColors) : null;
const meta = report.metadata;
select("title").textContent = report.path;
select("facts").textContent = [
  meta.cluster, `${report.ranks.length} of ${meta.world_size} ranks`, meta.gpu, `${count(report.rows)} rows`, `torch ${meta.torch}`, `host ${meta.host_mode}`,
  `steps by ${report.step_source}`, (meta.command || []).join(" "), report.complete ? "" : "CUT SHORT: the run was killed",
].filter(Boolean).join(" · ");
fill("findings", ...details.findings.map((line) => element("li", { textContent: line })));
options(select("step"), [["", report.steps.length > 1 ? "steady steps" : "all"], ...report.steps.map((s) => [s.number, `${s.number}: ${duration(s.times.time)}`])]);
options(select("rank"), [["", "mean over ranks"], ...report.ranks.map((r) => [r.rank, `rank ${r.rank}`])]);
options(select("class"), [["", "all"], ...classNames.map((name) => [name, name || "none"])]);
options(select("work"), Object.entries(WORK));
navigation("report");
showOutOfMemory(details.fit);
showCommunication();
showWaterfall(report, details);
showRoofline(report, details);
for (const id of ["step", "rank", "class"]) select(id).addEventListener("change", show);
select("work").addEventListener("change", showWork);
show();
contents();
