"use strict";
// The report page: verdict, time, kernels, memory. Every number is the report's own; nothing is computed here but shares
// and sums.

const report = data.report;
const details = report.details;
let part = report; // what tables are of: the whole report, or that of the chosen rank and step
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
  const steady = steps.filter((s) => data.mean.includes(s.number));
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
    ...(times.communication ? [tile("communication hidden", percent(times.overlap), "overlap"), tile("exposed", duration(times.exposed), "exposed")] : []),
    tile("idle", percent(times.idle / times.time), "idle"),
    ...(times.mfu === null ? [] : [tile(`MFU (${report.metadata.mfu_dtype})`, percent(typical ? report.headline.mfu : times.mfu), "mfu")]),
    ...(times.peak_reserved ? [tile("peak allocated", size(times.peak_allocated), "peak"), tile("peak reserved", size(times.peak_reserved), "reserved")] : []),
  ];
  const { throughput } = report.headline;
  if (throughput && step === null) {
    if (throughput.tokens_per_second) tiles.push(tile(throughput.read ? "tokens read/s of the job" : "tokens/s of the job", count(throughput.tokens_per_second), "tokens"));
    if (throughput.samples_per_second) tiles.push(tile("samples/s of the job", amount(throughput.samples_per_second), "samples"));
  }
  fill("tiles", ...tiles);
  const note = report.steps.find((s) => s.number === step)?.note;
  fill("headline", step === null ? headline() : note ? `Set apart from the steady steps: ${note}.` : "");
}

// What the steady steps say: the first part of the verdict's line STEP, and which steps they are.
function headline() {
  const h = report.headline, said = (data.verdict.find(([word]) => word === "STEP")?.[1] ?? duration(h.step_time)).split("   ")[0];
  const apart = Object.entries(h.apart).map(([note, steps]) => `${note}: ${steps.join(", ")}`).join("; ");
  const of = report.step_source === "run" || !h.steps ? "" : !h.settled ? ", settled, by the power model: the run ends before"
    : h.steps > 1 ? `, mean of ${h.steps} steady steps, ${duration(h.lowest)} to ${duration(h.highest)}` : ", one step";
  return `${said}${of}.${h.without_data ? " Single steps and ranks have no time of data." : ""}${apart ? ` Set apart: ${apart}.` : ""}`;
}

const causes = () => legend(Object.keys(stallColors).filter((name) => name === "compute" || report.steps.some((s) => s.times.stalls[name])), stallColors, { compute: "at least one kernel that is not communication runs", ...data.causes });

// The terminal's rows of time without compute, and its sentences.
function showHeldUp() {
  const full = details.fit?.fits === false; // what ran until then is no step of a training
  select("held-up-part").hidden = full;
  select("full-part").hidden = !full || !details.memory.length;
  if (full && details.memory.length) {
    const own = memoryOf(null);
    fill("full", bars(Object.entries(own.by_category).map(([name, bytes]) => [name, { [name]: bytes }, size(bytes)]), memoryColors, size), table(own.largest, BLOCKS.slice(0, 5), 8));
  }
  const all = report.steady.time || 1, found = report.delays.filter((delay) => delay.time > 0.0005 * all).slice(0, 8);
  const colors = Object.fromEntries(found.map((delay) => [delay.name, stallColors[delay.cause]]));
  fill("held-up", found.length ? bars(found.map((delay) => [delay.name, { [delay.name]: delay.time }, `${percent(delay.time / all)}  ${duration(delay.time)}${delay.gain ? `; costs ${percent(delay.gain / all)}` : ""}`]), colors, duration, all)
    : element("p", { className: "soft", textContent: "Nothing: kernels compute all the time." }));
  fill("findings", ...details.findings.map((line) => element("li", { textContent: line })));
}

const FEW = 8; // ranks that are shown each for itself
const EQUAL = 0.01; // of a step: ranks whose times differ by less are one

// Groups of ranks, the first of each stands for all: ranks of equal time by use, those on the critical path first.
function equalRanks(step) {
  const groups = [], path = pathOf(step)?.by_rank ?? {};
  for (const { rank } of [...report.ranks].sort((a, b) => (path[b.rank] ?? 0) - (path[a.rank] ?? 0) || a.rank - b.rank)) {
    const times = timesOf(rank, step);
    if (!times) continue;
    const own = { time: times.time, ...parts(times) };
    const group = groups.find((g) => Object.entries(own).every(([name, ns]) => Math.abs(ns - (g.own[name] || 0)) < EQUAL * times.time));
    if (group) group.ranks.push(rank);
    else groups.push({ own, times, ranks: [rank] });
  }
  return groups.sort((a, b) => a.ranks[0] - b.ranks[0]);
}

function showBars(rank, step) {
  select("by-rank-part").hidden = report.ranks.length < 2;
  const groups = report.ranks.length > FEW ? equalRanks(step)
    : report.ranks.map((r) => ({ ranks: [r.rank], times: timesOf(r.rank, step) })).filter((g) => g.times);
  const label = (g) => `rank${g.ranks.length > 1 ? "s" : ""} ${rangesOf(g.ranks)}`;
  const late = new Map(details.stragglers.map((s) => [s.rank, s]));
  const mostOf = (g, name) => Math.max(...g.ranks.map((r) => late.get(r)?.[name] ?? 0));
  fill("by-rank", ...(report.ranks.length > FEW ? [element("p", { className: "soft", textContent: `Ranks whose times differ by less than ${percent(EQUAL)} of a step are one.` })] : []),
    causes(), bars(groups.map((g) => [label(g), parts(g.times), duration(g.times.time)]), stallColors, duration), table(groups, [
      ["rank", (g) => (g.ranks.length > 1 ? rangesOf(g.ranks) : g.ranks[0]), String], ["time", (g) => g.times.time, duration], ["compute", (g) => g.times.compute, duration],
      ["communication", (g) => g.times.communication, duration], ["exposed", (g) => g.times.exposed, duration], ["overlap", (g) => g.times.overlap, percent],
      ["waits for others, hidden too", (g) => g.times.waiting, duration], ["others wait for it", (g) => mostOf(g, "caused"), duration],
      ["idle", (g) => g.times.idle, duration], ["MFU", (g) => g.times.mfu, percent]], 2000));
  const steps = rank === null ? report.steps : report.ranks.find((r) => r.rank === rank).steps;
  // Steps that are set apart may be many times longer: they do not set the scale.
  const whole = 1.25 * Math.max(0, ...steps.filter((s) => !s.note).map((s) => s.times.time));
  const apart = steps.some((s) => s.note) ? [element("p", { className: "soft", textContent: "* set apart from the steady steps; bars that fade out are longer than drawn." })] : [];
  const longest = Math.max(0, ...steps.map((s) => s.times.time));
  fill("by-step", ...apart, causes(), bars(steps.map((s) => [`step ${s.number}${s.note ? "*" : ""}`, parts(s.times), duration(s.times.time)]), stallColors, duration, Math.min(whole || longest, longest)));
}

function shares(values, colors) {
  return bars(Object.entries(values).map(([name, share]) => [name || "none", { [name]: share }, percent(share)]), colors, percent);
}

function showClasses() {
  fill("classes", shares(Object.fromEntries(Object.entries(part.by_class).filter(([, share]) => share >= 0.0005).sort((a, b) => b[1] - a[1])), classColors));
  fill("provenance", shares(part.by_provenance, colorsOf(Object.keys(part.by_provenance))),
    ...(part.unmeasured.length ? [element("p", { textContent: "Costliest that are not measured:" }), table(part.unmeasured, [
      ["operator", (g) => g.operator, text], ["source", (g) => g.provenance, text], ["share", (g) => g.share, percent], ["error", (g) => g.error, percent]], 20)] : []));
}

const WORK = { kernels: "Kernels", operators: "Operators", modules: "Annotations", classes: "Classes" };

const each = () => Math.max(1, part.headline.steps * part.ranks.length); // steps of ranks in the sums

function showWork() {
  const cls = select("class").value, kind = select("work").value;
  const rows = part.details[kind].filter((w) => !cls || w.cls === cls || (kind === "classes" && w.name === cls));
  const bandwidth = meta.extra.memory_bandwidth;
  fill("works", element("p", { className: "soft", textContent: "Calls and time: per rank and step; waits for peers left out. Arithmetic: share of the peak of the operands' format; memory: share of the bandwidth." }), table(rows, [
    ["name", (w) => kernel(w.name), text], ["share", (w) => w.share, percent], ["time", (w) => w.time / each(), duration], ["calls", (w) => w.count / each(), amount],
    ["shortest", (w) => w.shortest, duration], ["mean call", (w) => w.time / w.count, duration], ["longest", (w) => w.longest, duration],
    ["arithmetic", (w) => (w.time && w.at_peak ? w.at_peak / w.time : null), percent],
    ["memory", (w) => (w.time && w.bytes && bandwidth && w.cls !== "communication" ? (w.bytes / w.time) * 1e9 / bandwidth : null), percent],
    ["class", (w) => w.cls, text], ["source", (w) => w.provenance, text]], 50));
}

function showCommunication() {
  const { collectives, links } = part.details;
  select("communication").hidden = !collectives.length && !links.length;
  fill("exposure", element("p", { className: "soft", textContent: "Exposed, per rank and step, and the operator that waited for it." }), table(part.exposure, [
    ["collective", (e) => collective(e.collective), text], ["of", (e) => e.group, text], ["awaited by", (e) => e.waited_by, text],
    ["exposed", (e) => e.exposed, duration], ["late rank", (e) => e.late_rank, duration], ["share", (e) => e.exposed / part.steady.time, percent]]));
  fill("collectives", element("p", { className: "soft", textContent: "Calls per rank and step; mean of a call." }), table(collectives, [
    ["collective", (c) => collective(c.name), text], ["of", (c) => c.group, text], ["algorithm", (c) => c.algorithm, text], ["calls", (c) => c.count / each(), amount],
    ["size", (c) => c.bytes, size], ["wait", (c) => c.wait, duration], ["transfer", (c) => c.transfer, duration],
    ["algorithm bw", (c) => c.algorithm_bandwidth, rate], ["bus bw", (c) => c.bus_bandwidth, rate], ["skew", (c) => c.skew, duration],
    ["last", (c) => (c.last < 0 ? "-" : `rank ${c.last}`), String]]));
  const shades = { "used, mean of a step": "var(--color-transfer)", "used at most": "var(--color-end)" };
  fill("links", ...(!links.length ? [] : [
    element("p", { className: "soft", textContent: "Share of each link's bandwidth, the most used first." }), legend(Object.keys(shades), shades),
    bars(links.slice(0, 12).map((l) => [l.name, { "used, mean of a step": l.utilisation, "used at most": l.peak - l.utilisation }, percent(l.utilisation)]),
      shades, percent),
    table(links, [
      ["link", (l) => l.name, text], ["bandwidth", (l) => l.bandwidth, rate], ["bytes a step", (l) => l.bytes, size], ["busy a step", (l) => l.busy, duration],
      ["used", (l) => l.utilisation, percent], ["used at most", (l) => l.peak, percent]])]));
}

function showMemory(rank, step) {
  const own = memoryOf(rank);
  if (!own?.timeline.length) return;
  select("memory-rank").textContent = own.rank;
  const steps = report.ranks.find((r) => r.rank === own.rank).steps;
  const number = select("memory-time").value === "run" ? null : step ?? typicalStep();
  fill("memory", element("p", { className: "soft", textContent: memoryIs(own, steps.some((s) => s.number === number) ? number : null) }),
    ...memoryChart(own, steps, number),
    element("p", { textContent: `${details.fit?.fits === false && own.failed ? "When the allocation failed" : "At the peak"} (${own.peak_step === null ? "outside the steps" : `step ${own.peak_step}`}, ${duration(own.peak_time)}): ${size(own.peak_allocated)} allocated, ${size(own.peak_reserved)} reserved of ${size(own.capacity)}.${own.lowest_peak < own.highest_peak ? ` By chance (when NCCL's watchdog frees buffers) ${size(own.lowest_peak)} to ${size(own.highest_peak)}.` : ""}` }),
    ...(details.fit ? [element("p", { textContent: details.fit.fits ? details.fit.says.join(" ") : details.fit.says[0] })] : []),
    bars(Object.entries(own.by_category).map(([name, bytes]) => [name, { [name]: bytes }, size(bytes)]), memoryColors, size),
    table(own.largest, BLOCKS, 20));
}

const BLOCKS = [
  ["largest blocks at the peak", (b) => b.operator || "outside of operators", text], ["bytes", (b) => b.bytes, size],
  ["blocks", (b) => b.count, String], ["category", (b) => b.category, text], ["made at", (b) => b.site, text],
  ["module", (b) => b.module, text], ["shapes", (b) => b.shape, text],
];

function memoryIs(own, number) {
  if (number === null) return "The whole run. Each point is the highest level of a stretch of time.";
  return `Step ${number}, from its beginning. Dashed: the least and the most that the steady steps have allocated at the same share of a step.`;
}

const typicalStep = () => data.served?.typical[data.served.run].number ?? pathOf(null)?.step ?? report.steps.at(-1)?.number ?? null;

function pathOf(step) {
  const paths = details.critical_paths;
  return step !== null ? paths.find((p) => p.step === step) : paths.find((p) => p.gain) || paths.at(-1);
}

function showPath(step) {
  const path = pathOf(step);
  select("path-step").textContent = path ? path.step : step;
  if (!path) return fill("path", "The report has no path of this step.");
  const classes = Object.entries(path.by_class).filter(([, ns]) => ns >= 0.0005 * path.length).sort((a, b) => b[1] - a[1]);
  const own = colorsOf(classes.map(([n]) => n));
  const most = (values) => Object.entries(values).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([n, v]) => `${n} ${percent(v / path.length)}`).join(", ");
  const named = (words, values) => (Object.keys(values).length ? [element("p", { className: "soft", textContent: `${words}: ${most(values)}` })] : []);
  fill("path",
    element("p", { textContent: `${duration(path.length)}, from rank ${path.start_rank} to rank ${path.end_rank}; ${count(path.segments)} segments.` }),
    legend(classes.map(([n]) => n), own), bars([["", path.by_class, duration(path.length)]], own, duration),
    ...named("Ranks", path.by_rank), ...named("Host", path.by_host),
    table(classes, [["class", ([n]) => n, text], ["on the path", ([, v]) => v, duration], ["share", ([, v]) => v / path.length, percent],
      ["gain if free", ([n]) => (path.gain && n in path.gain ? path.gain[n] : null), (x) => (x === null ? "-" : duration(x))]]),
    ...(path.gain ? [] : [element("p", { className: "soft", textContent: "Gains are computed for the step of median length, and for a step asked for alone (--steps)." })]));
}

const choice = (id) => (select(id).value === "" ? null : Number(select(id).value));

// The terminal's tables of the chosen rank and step; a page without a server has those of all.
async function showTables() {
  const [rank, step] = [choice("rank"), choice("step")], wanted = `${rank}:${step}`;
  const whole = rank === null && step === null, of = `${rank === null ? "all ranks" : `rank ${rank}`}, ${step === null ? "steady steps" : `step ${step}`}`;
  showTables.wanted = wanted;
  part = report;
  select("scope").textContent = whole || !data.served ? "" : `Reading ${of} …`;
  if (!whole && data.served) {
    const query = new URLSearchParams({ run: data.served.run, ...(rank === null ? {} : { rank }), ...(step === null ? {} : { step }) });
    const found = await fetch(`/part.json?${query}`).then(async (answer) => (answer.ok ? answer.json() : Promise.reject(new Error(await answer.text())))).catch((error) => error);
    if (showTables.wanted !== wanted) return;
    if (!(found instanceof Error)) part = found;
    select("scope").textContent = found instanceof Error ? found.message : "";
  } else if (!whole) select("scope").textContent = "Tables of kernels and collectives: all ranks, steady steps.";
  drawTables();
}

function drawTables() {
  showWork();
  showClasses();
  showCommunication();
  showRoofline(report, part.details.operators);
  showModules(part.details, memoryOf(choice("rank")), each());
}

const memoryOf = (rank) => details.memory.find((own) => own.rank === rank) || details.memory[0];

// What a part of the page draws, when it opens (charts are as wide as there is room) and when a choice changes.
const PARTS = {
  verdict: () => { showHeldUp(); showLost(report); },
  time: () => {
    const [rank, step] = [choice("rank"), choice("step")];
    showTimes(rank, step);
    showBars(rank, step);
    showPath(step);
    chart?.show(step ?? typicalStep(), rank, select("class").value, report.ranks.length > FEW ? equalRanks(step ?? typicalStep()) : null);
  },
  kernels: drawTables,
  memory: () => showMemory(choice("rank"), choice("step")),
};

function show() {
  for (const draw of Object.values(PARTS)) draw();
}

const chart = data.served ? new Timeline(data.served.run, "", classColors) : null;
const meta = report.metadata;
select("title").textContent = report.path;
select("facts").textContent = [
  meta.cluster, meta.world_size > 1 ? `${report.ranks.length} of ${meta.world_size} ranks` : "1 rank", (meta.cluster || "").includes(meta.gpu) ? "" : meta.gpu,
  `${count(report.rows)} rows`, meta.torch && `torch ${meta.torch}`, meta.host_mode === "real" ? "a real run" : `host ${meta.host_mode}`,
  report.step_source === "run" ? "no steps" : `steps by ${report.step_source}`, (meta.command || []).join(" "), report.complete || report.failure ? "" : `CUT SHORT: the run was ${report.trailer.error || "killed"}`,
].filter(Boolean).join(" · ");
fill("verdict", ...definitions(data.verdict));
fill("assumed", ...definitions(data.assumed.map((text) => ["ASSUMED", text])));
options(select("step"), [["", report.steps.length > 1 ? "steady steps" : "all"], ...report.steps.map((s) => [s.number, `${s.number}: ${duration(s.times.time)}`])]);
options(select("rank"), [["", "mean over ranks"], ...report.ranks.map((r) => [r.rank, `rank ${r.rank}`])]);
options(select("class"), [["", "all"], ...classNames.map((name) => [name, name || "none"])]);
options(select("work"), Object.entries(WORK));
navigation("report");
if (data.served?.what_if) new WhatIf(data.served);
select("verdict-part").classList.toggle("bad", details.fit?.fits === false);
for (const id of ["step", "rank"]) select(id).addEventListener("change", () => { show(); showTables(); });
select("class").addEventListener("change", () => { PARTS.time(); showWork(); });
select("memory-time").addEventListener("change", PARTS.memory);
select("work").addEventListener("change", showWork);
show();
const remembered = details.memory.some((own) => own.timeline.length);
stories({ verdict: "Verdict", time: "Time", kernels: "Kernels", ...(remembered ? { memory: "Memory" } : {}) }, (name) => {
  select("choices").hidden = name === "verdict";
  PARTS[name]();
});
