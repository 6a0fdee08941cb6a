"use strict";
// Memory of a rank over time: a typical step between the least and the most of all steady steps, or the whole run.

const CATEGORIES = ["parameters", "optimizer", "gradients", "activations", "checkpoints", "communication", "workspaces", "preconditioners", "buffers", "data", "kept", "other", "fragmentation"];
const memoryColors = { ...colorsOf(CATEGORIES), reserved: "var(--text)", peak: "var(--worse)", "all steady steps": "var(--soft)" };
const PLACES = 120; // places of a step at which the steady steps are compared

// `own`: the rank's MemoryReport; `steps`: its steps; `number`: of the step to show, null for the whole run.
function memoryChart(own, steps, number) {
  const step = steps.find((s) => s.number === number);
  const points = own.timeline, times = points.map((p) => p[0]);
  const [from, to] = step ? [step.start, step.end] : [times[0], times.at(-1)];
  // From the level at the beginning on, which may have been reached before.
  const first = Math.max(0, indexAt(times, from)), shown = points.slice(first, indexAt(times, to) + 1);
  const most = Math.max(1, ...shown.map((p) => Math.max(p[1], p[2])));
  const [w, h, left, top, bottom] = [Math.max(300, Math.min(1150, document.getElementById("memory").clientWidth)), 240, 62, 10, 22];
  const x = (t) => left + ((w - left - 8) * (Math.min(to, Math.max(from, t)) - from)) / Math.max(1, to - from);
  const y = (bytes) => h - bottom - ((h - bottom - top) * bytes) / (1.05 * most);
  // The level changes at once: horizontal, then vertical.
  const stairs = (levels) => levels.map(([t, bytes], i) => (i ? `H${x(t).toFixed(1)}V${y(bytes).toFixed(1)}` : `M${x(t).toFixed(1)},${y(bytes).toFixed(1)}`)).join("") + `H${x(to)}`;
  const picture = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": "memory over time", class: "chart fitted" });
  const uses = CATEGORIES.filter((name) => own.timeline_by_category[name]);
  // Each category is drawn from zero to the sum of itself and those below; the highest first.
  const sums = shown.map(() => 0);
  const areas = uses.map((name) => {
    shown.forEach((_, i) => (sums[i] += own.timeline_by_category[name][first + i]));
    return svg("path", { d: `${stairs(shown.map((p, i) => [p[0], sums[i]]))}V${y(0)}H${x(from)}Z`, fill: memoryColors[name] });
  });
  picture.append(...areas.reverse(), ...memoryAxes(most, from, to, x, y, w, h), svg("path", { d: stairs(shown.map((p) => [p[0], p[2]])), fill: "none", stroke: memoryColors.reserved }));
  const marks = ["reserved"];
  const steady = steps.filter((s) => !s.note);
  if (step && steady.length > 1) {
    for (const pick of [Math.min, Math.max]) {
      const line = envelope(points, times, steady, pick).map((bytes, i) => `${i ? "L" : "M"}${x(from + ((to - from) * i) / (PLACES - 1)).toFixed(1)},${y(bytes).toFixed(1)}`).join("");
      picture.append(svg("path", { d: line, fill: "none", stroke: memoryColors["all steady steps"], "stroke-dasharray": "3 3" }));
    }
    marks.push("all steady steps");
  }
  if (own.peak_time >= from && own.peak_time <= to) {
    picture.append(svg("path", { d: `M${x(own.peak_time)},${top}V${y(0)}`, stroke: memoryColors.peak, "stroke-dasharray": "4" }));
    marks.push("peak");
  }
  const says = element("p", { className: "number timeline-text", textContent: "Point at the chart to read it." });
  followPointer(picture, w, x, from, to, (time) => {
    const i = indexAt(times, time);
    if (i < 0) return;
    const parts = uses.filter((name) => own.timeline_by_category[name][i]).map((name) => `${name} ${size(own.timeline_by_category[name][i])}`);
    says.textContent = `at ${duration(time - from)}: ${size(points[i][1])} allocated, ${size(points[i][2])} reserved · ${parts.join(", ")}`;
  }, top, y(0));
  return [legend([...uses, ...marks], memoryColors), picture, says];
}

// Index of the last time that is not after `time`; -1 for none.
function indexAt(times, time) {
  let [low, high] = [0, times.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low - 1;
}

// Bytes allocated at each phase of a step: the least or the most of all of them.
function envelope(points, times, steps, pick) {
  return Array.from({ length: PLACES }, (_, i) => pick(...steps.map((s) =>
    points[Math.max(0, indexAt(times, s.start + ((s.end - s.start) * i) / (PLACES - 1)))][1])));
}

function memoryAxes(most, from, to, x, y, w, h) {
  const made = [], label = (at, words, anchor) => svg("text", { ...at, "text-anchor": anchor, class: "tick label" }, words);
  const unit = most >= 2 ** 30 ? 2 ** 30 : most >= 2 ** 20 ? 2 ** 20 : 2 ** 10;
  const every = roundStep((1000 * most) / unit / 5) / 1000; // of a unit, in thousandths
  for (let at = 0; at * unit <= 1.05 * most; at += every)
    made.push(svg("path", { d: `M${x(from)},${y(at * unit)}H${w - 8}`, class: "grid" }),
      label({ x: x(from) - 5, y: y(at * unit) + 4 }, `${Number(at.toPrecision(3))} ${unit === 2 ** 30 ? "GiB" : unit === 2 ** 20 ? "MiB" : "KiB"}`, "end"));
  const distance = roundStep((to - from) / (w < 500 ? 3 : 7));
  for (let at = 0; at <= to - from; at += distance)
    made.push(label({ x: x(from + at), y: h - 5 }, moment(at, distance), at ? "middle" : "start"));
  return made;
}

// A line under the pointer; `tell` gets the time there.
function followPointer(picture, w, x, from, to, tell, top, bottom) {
  const line = svg("path", { stroke: "var(--text)", d: "" });
  picture.append(line);
  const move = (event) => {
    const area = picture.getBoundingClientRect(), at = ((event.clientX - area.left) * w) / area.width;
    const share = (at - x(from)) / (x(to) - x(from));
    if (share < 0 || share > 1) return;
    line.setAttribute("d", `M${at},${top}V${bottom}`);
    tell(from + share * (to - from));
  };
  for (const kind of ["pointermove", "pointerdown"]) picture.addEventListener(kind, move);
}
