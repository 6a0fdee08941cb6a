"use strict";
// The report page. Every number is the report's own; nothing is computed here but shares and sums.

const report = data.report;
const details = report.details;
const stallColors = colorsOf(["compute", ...Object.keys(data.causes)]);
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

const causes = () => legend(Object.keys(stallColors).filter((name) => name === "compute" || report.steps.some((s) => s.times.stalls[name])), stallColors, { compute: "at least one kernel that is not communication runs", ...data.causes });

// What takes the time in which nothing computes, and, of the mean, the sentences of the report.
function showStalls(rank, step) {
  const times = timesOf(rank, step), mean = rank === null && step === null;
  select("held-up-step").textContent = step === null ? "the steps" : `step ${step}`;
  const found = Object.entries(times?.stalls || {}).filter(([, ns]) => ns > 0.0005 * times.time).sort((a, b) => b[1] - a[1]);
  fill("stalls", found.length ? bars(found.map(([name, ns]) => [name, { [name]: ns }, `${percent(ns / times.time)}  ${duration(ns)}`]), stallColors, duration, times.time)
    : element("p", { className: "soft", textContent: "Nothing: kernels compute all the time." }));
  fill("findings", ...(mean ? details.findings : found.map(([name]) => `${name}: ${data.causes[name]}`)).map((line) => element("li", { textContent: line })));
}

function showBars(rank, step) {
  const rows = report.ranks.map((r) => [r.rank, timesOf(r.rank, step)]).filter(([, t]) => t);
  fill("by-rank", causes(), bars(rows.map(([r, t]) => [`rank ${r}`, parts(t), duration(t.time)]), stallColors, duration));
  const steps = rank === null ? report.steps : report.ranks.find((r) => r.rank === rank).steps;
  // Steps that are set apart may be many times longer: they do not set the scale.
  const whole = 1.25 * Math.max(0, ...steps.filter((s) => !s.note).map((s) => s.times.time));
  const apart = steps.some((s) => s.note) ? [element("p", { className: "soft", textContent: "* set apart from the steady steps; bars that fade out are longer than drawn." })] : [];
  const longest = Math.max(0, ...steps.map((s) => s.times.time));
  fill("by-step", ...apart, causes(), bars(steps.map((s) => [`step ${s.number}${s.note ? "*" : ""}`, parts(s.times), duration(s.times.time)]), stallColors, duration, Math.min(whole || longest, longest)));
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
  fill("provenance", shares(report.by_provenance, colorsOf(Object.keys(report.by_provenance))),
    ...(report.unmeasured.length ? [element("p", { textContent: "Costliest that are not measured:" }), table(report.unmeasured, [
      ["operator", (g) => g.operator, text], ["source", (g) => g.provenance, text], ["share", (g) => g.share, percent], ["error", (g) => g.error, percent]], 20)] : []));
}

const WORK = { kernels: "Kernels", operators: "Operators", modules: "Modules (annotations)", classes: "Classes" };

function showWork() {
  const cls = select("class").value, kind = select("work").value;
  const rows = details[kind].filter((w) => !cls || w.cls === cls || (kind === "classes" && w.name === cls));
  const each = Math.max(1, report.headline.steps) * report.ranks.length;
  const peak = meta.peak_flops[meta.mfu_dtype], bandwidth = meta.extra.memory_bandwidth;
  const ofPeak = (w, amount, most) => (w.time && amount && most ? (amount / w.time) * 1e9 / most : null);
  fill("works", element("p", { className: "soft", textContent: `Calls and time: per rank and step; waits for peers left out. Arithmetic: share of the peak of ${meta.mfu_dtype}; memory: share of the bandwidth.` }), table(rows, [
    ["name", (w) => kernel(w.name), text], ["share", (w) => w.share, percent], ["time", (w) => w.time / each, duration], ["calls", (w) => w.count / each, amount],
    ["shortest", (w) => w.shortest, duration], ["mean call", (w) => w.time / w.count, duration], ["longest", (w) => w.longest, duration],
    ["arithmetic", (w) => ofPeak(w, w.flops, peak), percent], ["memory", (w) => ofPeak(w, w.bytes, bandwidth), percent],
    ["class", (w) => w.cls, text], ["source", (w) => w.provenance, text]], 50));
}

function showCommunication() {
  fill("exposure", table(report.exposure, [
    ["collective", (e) => kernel(e.collective), text], ["of", (e) => e.group, text], ["awaited by", (e) => e.waited_by, text],
    ["exposed", (e) => e.exposed, duration], ["late rank", (e) => e.late_rank, duration]]));
  fill("collectives", table(details.collectives, [
    ["collective", (c) => kernel(c.name), text], ["ranks", (c) => c.group, text], ["algorithm", (c) => c.algorithm, text], ["calls", (c) => c.count, count],
    ["size", (c) => c.bytes, size], ["wait", (c) => c.wait, duration], ["transfer", (c) => c.transfer, duration],
    ["algorithm bw", (c) => c.algorithm_bandwidth, rate], ["bus bw", (c) => c.bus_bandwidth, rate], ["skew", (c) => c.skew, duration],
    ["last", (c) => (c.last < 0 ? "-" : `rank ${c.last}`), String]]));
  fill("stragglers", table(details.stragglers, [
    ["rank", (s) => s.rank, String], ["caused a step", (s) => s.caused, duration], ["waited itself", (s) => s.waited, duration], ["came last", (s) => s.last, count]]));
  const shades = { "used, mean of a step": "var(--color-transfer)", "used at most": "var(--color-end)" };
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

function showMemory(rank, step) {
  const own = details.memory.find((m) => m.rank === rank) || details.memory[0];
  if (!own?.timeline.length) return fill("memory", "The log has no memory rows.");
  select("memory-rank").textContent = own.rank;
  const steps = report.ranks.find((r) => r.rank === own.rank).steps;
  const number = select("memory-time").value === "run" ? null : step ?? typicalStep();
  fill("memory", element("p", { className: "soft", textContent: memoryIs(own, steps.some((s) => s.number === number) ? number : null) }),
    ...memoryChart(own, steps, number),
    element("p", { textContent: `${details.fit?.fits === false && own.failed ? "When the allocation failed" : "At the peak"} (${own.peak_step === null ? "outside the steps" : `step ${own.peak_step}`}, ${duration(own.peak_time)}): ${size(own.peak_allocated)} allocated, ${size(own.peak_reserved)} reserved of ${size(own.capacity)}.${own.lowest_peak < own.highest_peak ? ` By chance (when NCCL's watchdog frees buffers) ${size(own.lowest_peak)} to ${size(own.highest_peak)}.` : ""}` }),
    ...(details.fit ? [element("p", { textContent: details.fit.says.join(" ") })] : []),
    bars(Object.entries(own.by_category).map(([name, bytes]) => [name, { [name]: bytes }, size(bytes)]), memoryColors, size),
    table(own.largest, [
      ["largest blocks at the peak", (b) => b.operator || "outside of operators", text], ["bytes", (b) => b.bytes, size],
      ["blocks", (b) => b.count, String], ["category", (b) => b.category, text], ["made at", (b) => b.site, text],
      ["module", (b) => b.module, text], ["shapes", (b) => b.shape, text],
    ], 20));
}

function memoryIs(own, number) {
  if (number === null) return "The whole run. Each point is the highest level of a stretch of time.";
  return `Step ${number}, from its beginning. Dashed: the least and the most that the steady steps have allocated at the same share of a step.`;
}

const typicalStep = () => pathOf(null)?.step ?? report.steps.at(-1)?.number ?? null;

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
    ["name", ([n]) => kernel(n), text], ["on the path", ([, v]) => v, duration], ["share", ([, v]) => v / path.length, percent]], 12);
  const classes = Object.entries(path.by_class).sort((a, b) => b[1] - a[1]);
  const own = colorsOf(classes.map(([n]) => n));
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
  showStalls(rank, step);
  showWaterfall(timesOf(rank, step), `${step === null ? "mean of the steady steps" : `step ${step}`}, ${rank === null ? "mean over ranks" : `rank ${rank}`}`, report);
  showBars(rank, step);
  showClasses(rank);
  showWork();
  showStreams(rank);
  showMemory(rank, step);
  showModules(details, details.memory.find((m) => m.rank === rank) || details.memory[0]);
  showPath(step);
  if (chart) chart.show(step ?? typicalStep(), rank, select("class").value);
}

const chart = data.served ? new Timeline(data.served.run, "", classColors) : null;
const meta = report.metadata;
select("title").textContent = report.path;
select("facts").textContent = [
  meta.cluster, `${report.ranks.length} of ${meta.world_size} ranks`, meta.gpu, `${count(report.rows)} rows`, `torch ${meta.torch}`, `host ${meta.host_mode}`,
  `steps by ${report.step_source}`, (meta.command || []).join(" "), report.complete ? "" : "CUT SHORT: the run was killed",
].filter(Boolean).join(" · ");
fill("verdict", ...data.verdict.flatMap(([word, line]) => [element("dt", { textContent: word }), element("dd", { textContent: line })]));
options(select("step"), [["", report.steps.length > 1 ? "steady steps" : "all"], ...report.steps.map((s) => [s.number, `${s.number}: ${duration(s.times.time)}`])]);
options(select("rank"), [["", "mean over ranks"], ...report.ranks.map((r) => [r.rank, `rank ${r.rank}`])]);
options(select("class"), [["", "all"], ...classNames.map((name) => [name, name || "none"])]);
options(select("work"), Object.entries(WORK));
navigation("report");
if (data.served?.what_if) new WhatIf(data.served, report.steady);
showOutOfMemory(details.fit);
showCommunication();
showRoofline(report, details);
for (const id of ["step", "rank", "class", "memory-time"]) select(id).addEventListener("change", show);
select("work").addEventListener("change", showWork);
show();
contents();
