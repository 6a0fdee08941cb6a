"use strict";
// Canvas timelines of one step: what rows.js paints, with a scale, labels, names, the critical path, and what the
// pointer does. A page may hold several; their elements' ids begin with a prefix each.

const MARGIN = 22, MOST = 420; // pixels: the scale above the tracks, and the height of all
const NAMED = 40; // pixels from which on a bar shows its name
const PHASES = ["forward", "backward", "optimizer", "waits for the GPU"]; // classes of the host's rows
const SHORTEST = 20; // ns: as far as one can zoom in

let arrow = null;
function loadArrow() {
  arrow ??= new Promise((resolve, reject) => {
    const script = element("script", { src: "/arrow.js" });
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => reject(new Error("The server does not answer any more: start phantora view again.")));
    document.head.append(script);
  });
  return arrow;
}

// `ranks`: those to load, null for all.
async function loadRows(run, step, ranks) {
  const some = ranks ? `&ranks=${ranks.join(",")}` : "";
  const [answer] = await Promise.all([fetch(`/rows.arrow?run=${run}&step=${step}${some}`), loadArrow()]);
  if (!answer.ok) throw new Error(await answer.text());
  return readRows(await answer.arrayBuffer());
}

// "#rgb" or "#rrggbb", mixed with `back` by `share`, as the canvas' memory holds it.
function ink(color, back, share) {
  const parts = (text) => (text.length === 4 ? [1, 2, 3].map((i) => text[i] + text[i]) : [1, 3, 5].map((i) => text.slice(i, i + 2))).map((h) => parseInt(h, 16));
  const [a, b] = [parts(color), parts(back)];
  const [red, green, blue] = a.map((value, i) => Math.round(value * share + b[i] * (1 - share)));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// The digits behind `var(--a, var(--b))`: the first name that style.css has.
const digits = (color) => (color.startsWith("#") ? color : digits((color.match(/--[\w-]+/g) || []).map(variable).find(Boolean) || "#888"));
// Black or white, whichever is seen on a colour.
function readable(color) {
  const [, red, green, blue] = digits(color).match(/^#(..)(..)(..)$/)?.map((part) => parseInt(part, 16)) ?? [0, 255, 255, 255];
  return 0.3 * red + 0.6 * green + 0.1 * blue > 110 ? "#000" : "#fff";
}
const leftOf = (width) => (width < 500 ? 44 : width < 900 ? 160 : 244); // labels of tracks

// The least of 1, 2, 5, 10, 20, ... that is `least` or more.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
}

// A time on the scale, with the digits that ticks of this distance need.
function moment(ns, every) {
  const [unit, scale] = every >= 1e8 ? ["s", 1e9] : every >= 1e5 ? ["ms", 1e6] : every >= 100 ? ["us", 1e3] : ["ns", 1];
  return `${(ns / scale).toLocaleString("en", { maximumFractionDigits: every >= scale ? 0 : 1 })} ${unit}`;
}

const HELP = [["wheel, W, S", "zoom"], ["drag, A, D", "move"], ["double click, 0", "the whole step"], ["click, arrows", "a row's price, error bar and source"],
  ["pale", "a collective waits for its last rank"], ["underlined", "the critical path"]];

// The timeline of `run`, whose classes of work have `colors`. `looked` is called with (from, to) when the user moves it.
// With `legends` it shows the colours of its classes.
class Timeline {
  constructor(run, prefix, colors, looked = () => {}, legends = true) {
    Object.assign(this, { run, prefix, colors: { ...colors, ...colorsOf(PHASES) }, looked, legends });
    // `least`: ns that are shown at least, so that two timelines can share a scale.
    this.view = { rows: null, loaded: "", whole: null, step: null, rank: null, cls: "", from: 0, to: 1, least: 0, tracks: [], height: 14, image: null };
    this.groups = null; // of equal ranks, the first of which is shown
    this.asked = false; // a frame is asked for
    this.chosen = -1; // the row whose details are open
    this.listen();
    this.closeDetails();
    this.pointer = new Pointer(this);
  }

  $(id) { return document.getElementById(this.prefix + id); }

  whole() { return Math.max(this.view.rows.length, this.view.least); }

  // `groups`: of equal ranks, of which one each is shown unless the user wants all; null: every rank.
  async show(step, rank, cls, groups = null) {
    const view = this.view;
    this.asks = { step, rank, cls, groups };
    this.$("timeline").hidden = false;
    this.$("timeline-step").textContent = `step ${step}${rank === null ? "" : `, rank ${rank}`}`;
    Object.assign(view, { step, rank, cls });
    const fewer = groups && groups.some((g) => g.ranks.length > 1);
    this.$("fold-label").hidden = !fewer || rank !== null;
    this.groups = fewer && rank === null && this.$("fold").checked ? groups : null;
    const ranks = rank !== null && groups ? [rank] : this.groups && this.groups.map((g) => g.ranks[0]); // few ranks are loaded at once
    if (`${step}:${ranks}` !== view.loaded && !(await this.load(step, ranks))) return;
    if (!view.rows) return;
    view.tracks = view.rows.tracks.filter((t) => view.rank === null || t.rank === view.rank);
    this.fitHeight();
    if (this.legends) fill(`${this.prefix}timeline-legend`, ...legend(view.rows.classes, this.colors).children);
    this.redraw();
  }

  // The rows of a step; false if there are none, or if the user wants others by now.
  async load(step, ranks) {
    const view = this.view, wanted = `${step}:${ranks}`;
    view.loaded = wanted;
    this.say("Loading …");
    this.closeDetails();
    view.rows = null;
    const rows = await loadRows(this.run, step, ranks).catch((error) => error);
    if (view.loaded !== wanted) return false;
    this.say(rows instanceof Error ? rows.message : `${count(rows.count)} rows`);
    if (rows instanceof Error) this.$("timeline-box").style.height = "3rem";
    if (rows instanceof Error) return false;
    view.rows = rows;
    if (view.whole !== step) [view.from, view.to, view.whole] = [0, this.whole(), step]; // else other ranks of what is seen
    return true;
  }

  say(words) { this.$("timeline-text").textContent = words; }

  // Height of a track: as chosen, or so that all are seen, or, unasked, readable unless they are very many.
  fitHeight() {
    const view = this.view, chosen = this.$("height").value, all = (MOST - MARGIN) / view.tracks.length;
    view.height = chosen === "all" ? Math.min(14, all) : chosen ? Number(chosen) : view.tracks.length > 64 ? Math.min(14, all) : 14;
  }

  redraw() {
    if (this.asked) return; // once a frame, whatever the pointer does
    this.asked = true;
    requestAnimationFrame(() => { this.asked = false; this.draw(); });
  }

  // Where things are on the canvas, in CSS pixels: [first, last) are the tracks that are seen, `x` the place of a time.
  layout() {
    const { view } = this, box = this.$("timeline-box"), ratio = devicePixelRatio || 1;
    const whole = Math.ceil(MARGIN + view.tracks.length * view.height);
    box.style.height = `${Math.min(whole, MOST) + 2}px`;
    const width = box.clientWidth, visible = box.clientHeight, left = leftOf(width);
    // The canvas covers what is seen; the margins around it make the box scroll over all tracks.
    const top = Math.min(box.scrollTop, Math.max(0, whole - visible));
    const scale = (width - left) / (view.to - view.from);
    return {
      ratio, whole, width, visible, left, top, scale, wide: Math.floor(width * ratio), high: Math.floor(visible * ratio),
      first: Math.max(0, Math.floor((top - MARGIN) / view.height)),
      last: Math.min(view.tracks.length, Math.ceil((top + visible - MARGIN) / view.height)),
      x: (time) => left + (time - view.from) * scale,
    };
  }

  draw() {
    if (!this.view.rows) return;
    const canvas = this.$("canvas"), at = this.layout();
    if (at.wide <= 0 || at.high <= 0) return; // not laid out: the page is on its way in or out
    if (canvas.width !== at.wide || canvas.height !== at.high) [canvas.width, canvas.height] = [at.wide, at.high];
    canvas.style.height = `${at.visible}px`;
    canvas.style.marginTop = `${at.top}px`;
    canvas.style.marginBottom = `${Math.max(0, at.whole - at.visible - at.top)}px`;
    const pen = canvas.getContext("2d");
    this.paint(pen, at);
    pen.setTransform(at.ratio, 0, 0, at.ratio, 0, 0);
    pen.font = "11px system-ui, sans-serif";
    pen.save();
    pen.beginPath();
    pen.rect(at.left, MARGIN, at.width - at.left, at.visible);
    pen.clip();
    if (this.view.height >= 12) this.drawNames(pen, at);
    this.drawPath(pen, at);
    this.drawChosen(pen, at);
    pen.restore();
    pen.fillStyle = getComputedStyle(document.body).color;
    this.drawLabels(pen, at);
    this.drawScale(pen, at);
  }

  // All tracks that are seen, pixel by pixel: its cost does not grow with the number of rows.
  paint(pen, { wide, high, left: labels, top, ratio }) {
    const view = this.view, rows = view.rows, left = Math.floor(labels * ratio), card = variable("--card"), back = ink(card, card, 1);
    if (!view.image || view.image.width !== wide || view.image.height !== high) view.image = pen.createImageData(wide, high);
    const pixels = new Uint32Array(view.image.data.buffer), line = new Uint32Array(wide - left);
    const palette = rows.words.cls.map((name) => {
      const color = digits(this.colors[name] || ""), share = view.cls && name !== view.cls ? 0.12 : 1;
      return { full: ink(color, card, share), pale: ink(color, card, 0.35 * share) };
    });
    const scale = line.length / (view.to - view.from), height = view.height * ratio, gap = height > 8 ? Math.round(ratio * 2) : height > 3 ? 1 : 0;
    pixels.fill(back);
    let y = Math.ceil(MARGIN * ratio), before = -1;
    for (; y < high; y++) {
      const at = y - MARGIN * ratio + Math.round(top * ratio), t = Math.floor(at / height);
      if (t >= view.tracks.length) break;
      if (t !== before) paintTrack(line, rows, view.tracks[t], view.from, scale, palette, back);
      before = t;
      if (at - t * height < height - gap) pixels.set(line, y * wide + left);
    }
    pen.putImageData(view.image, 0, 0);
  }

  // The names of bars that are wide enough; those that are not are passed over pixel by pixel, as paintTrack does.
  drawNames(pen, { x, scale, top, first, last, width }) {
    const view = this.view, rows = view.rows, op = rows.words.op, name = rows.words.name;
    pen.font = "10px system-ui, sans-serif";
    const inks = rows.words.cls.map((name) => readable(digits(this.colors[name] || "")));
    for (let t = first; t < last; t++) {
      const track = view.tracks[t], y = MARGIN + (t + 0.5) * view.height - top + 3;
      let row = firstAfter(rows.end, view.from, track.first, track.last);
      while (row < track.last && rows.start[row] < view.to) {
        const a = Math.max(x(view.from), x(rows.start[row])), b = Math.min(width, x(rows.end[row]));
        if (b - a < NAMED) {
          row = b - a > 1 ? row + 1 : firstAfter(rows.end, Math.max(rows.end[row], rows.start[row] + 1 / scale), row + 1, track.last);
          continue;
        }
        const text = (op[rows.op[row]] || name[rows.name[row]]).replace(/^aten::|^ncclDevKernel_|\(.*$/g, "");
        const most = Math.floor((b - a - 6) / 5.5);
        pen.fillStyle = inks[rows.cls[row]];
        pen.fillText(text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text, a + 3, y);
        row++;
      }
    }
    pen.font = "11px system-ui, sans-serif";
  }

  // The critical path, a line under the bars that lie on it.
  drawPath(pen, { x, top, first, last }) {
    const view = this.view;
    const place = new Map(view.tracks.slice(first, last).map((track, i) => [`${track.rank}:${track.stream}`, first + i]));
    const thick = Math.min(2, Math.max(1, view.height));
    pen.fillStyle = variable("--worse");
    for (const [rank, stream, start, end] of view.rows.path) {
      const t = place.get(`${rank}:${stream}`), a = x(start - view.rows.origin), b = x(end - view.rows.origin);
      if (t !== undefined) pen.fillRect(a, MARGIN + (t + 1) * view.height - top - thick, Math.max(0.7, b - a), thick);
    }
  }

  // A frame around the row whose details are open.
  drawChosen(pen, { x, top }) {
    const { tracks, rows, height } = this.view, t = tracks.findIndex((track) => track.first <= this.chosen && this.chosen < track.last);
    if (t < 0) return;
    const a = x(rows.start[this.chosen]);
    pen.strokeStyle = getComputedStyle(document.body).color;
    pen.strokeRect(a, MARGIN + t * height - top + 0.5, Math.max(1, x(rows.end[this.chosen]) - a), height - 1);
  }

  drawLabels(pen, { width, top, first, last }) {
    let under = MARGIN; // labels that would touch are left out
    for (let t = first; t < last; t++) {
      const y = MARGIN + (t + 0.5) * this.view.height - top + 4;
      if (y < under) continue;
      pen.fillText(this.label(this.view.tracks[t], width), 3, y);
      under = y + 12;
    }
  }

  // "rank 0 / compute", "ranks 0-7 / all_gather dp_shard": a stream by what runs on it.
  label(track, width) {
    const name = this.view.rows.streams[`${track.rank}:${track.stream}`] || `stream ${track.stream}`;
    const role = track.stream < 0 ? name : name.match(/\((.*)\)/)?.[1] ?? name;
    const ranks = this.groups?.find((g) => g.ranks[0] === track.rank)?.ranks ?? [track.rank];
    if (width < 500) return `${track.rank}:${role.replace("host, ", "").slice(0, 5)}`;
    const who = ranks.length > 1 ? `ranks ${rangesOf(ranks).slice(0, 12)}` : `rank ${track.rank}`;
    const text = `${who} / ${role}`, most = width < 900 ? 26 : 40;
    return text.length > most ? `${text.slice(0, most - 1)}…` : text;
  }

  drawScale(pen, { left, width }) {
    const view = this.view, length = view.to - view.from, every = roundStep(length / (width < 500 ? 3 : 7));
    for (let at = Math.ceil(view.from / every) * every; at < view.to; at += every) {
      const x = left + ((width - left) * (at - view.from)) / length;
      pen.fillRect(x, 12, 1, 7);
      if (x < width - 50) pen.fillText(moment(at, every), x + 3, 16);
    }
  }

  // What lies under a point of the canvas.
  rowAt(event) {
    const view = this.view, canvas = this.$("canvas"), area = canvas.getBoundingClientRect(), left = leftOf(area.width);
    const track = view.tracks[Math.floor((event.clientY - area.top + parseFloat(canvas.style.marginTop || 0) - MARGIN) / view.height)];
    const time = view.from + ((event.clientX - area.left - left) / (area.width - left)) * (view.to - view.from);
    const row = track && event.clientX - area.left >= left ? rowOf(view.rows, track, time) : -1;
    return { time, row, track };
  }

  describe({ row, track }) {
    const rows = this.view.rows, word = (column) => rows.words[column][rows[column][row]], wait = rows.ready[row] - rows.start[row];
    return `${this.label(track, 900)} · ${word("op") || word("name")} · ${word("cls") || "no class"} · ` +
      `${duration(rows.end[row] - rows.start[row])}${wait ? `, waits ${duration(wait)}` : ""} · at ${duration(rows.start[row])} · ${word("name").slice(0, 120)}`;
  }

  // All that is known of a row, as pairs of a name and a text; an empty text is not shown.
  facts({ row, track }) {
    const rows = this.view.rows, word = (column) => rows.words[column][rows[column][row]], wait = rows.ready[row] - rows.start[row];
    const took = rows.end[row] - rows.start[row], error = rows.error[row], flops = rows.flops[row];
    return [
      ["operator", word("op")], ["kernel", track.stream < 0 ? "" : kernel(word("name"))], ["shapes", word("shape")], [track.stream < 0 ? "phase" : "class", word("cls")], ["module", word("module")],
      ["where", `rank ${track.rank}, ${rows.streams[`${track.rank}:${track.stream}`] || `stream ${track.stream}`}`],
      ["duration", duration(took)], ["waits", wait ? duration(wait) : ""],
      ["price", track.stream < 0 || word("provenance") === "real" ? "" : this.price(took - wait, error)],
      ["source", word("provenance")],
      ["begins", duration(rows.start[row])], ["launched", rows.launch[row] + rows.origin >= 0 ? `${duration(rows.start[row] - rows.launch[row])} before` : ""],
      ["flops", flops ? `${flops.toExponential(2)}, ${(flops / took / 1e3).toFixed(1)} TFLOP/s` : ""],
      ["bytes", rows.bytes[row] ? `${size(rows.bytes[row])}, ${rate((rows.bytes[row] / took) * 1e9)}` : ""],
    ];
  }

  price(ns, error) {
    return duration(ns) + (Number.isNaN(error) ? "" : ` ± ${percent(error)} (${duration(ns * (1 - error))} to ${duration(ns * (1 + error))})`);
  }

  // The facts of a row, docked next to the chart, or under it where the page is narrow.
  openDetails(found) {
    const button = element("button", { textContent: "×", title: "close (Esc)", className: "close" });
    button.addEventListener("click", () => this.closeDetails());
    this.$("details").className = "details";
    this.$("details").replaceChildren(button, this.listOf(this.facts(found).filter(([, value]) => value)));
    this.chosen = found.row;
    this.redraw();
  }

  // Then the dock says what keys and pointer do.
  closeDetails() {
    this.$("details").className = "details soft";
    this.$("details").replaceChildren(this.listOf(HELP));
    this.chosen = -1;
    this.redraw();
  }

  listOf(lines) {
    return element("table", {}, element("tbody", {}, ...lines.map(([name, value]) =>
      element("tr", {}, element("th", { className: "text", textContent: name }), element("td", { className: "text", textContent: value })))));
  }

  // The next row on the track, the one before, or the one at the same time on another track.
  step(along, across) {
    const { view, chosen } = this, { rows, tracks } = view;
    let t = tracks.findIndex((track) => track.first <= chosen && chosen < track.last), row = chosen;
    if (t < 0) [t, row] = [0, firstAfter(rows.end, view.from, tracks[0].first, tracks[0].last)];
    else if (along) row += along;
    else if (tracks[t + across]) {
      t += across;
      row = firstAfter(rows.end, rows.start[chosen], tracks[t].first, tracks[t].last);
    }
    const track = tracks[t];
    row = Math.min(track.last - 1, Math.max(track.first, row));
    if (rows.start[row] < view.from || rows.end[row] > view.to) this.look((rows.start[row] + rows.end[row] - view.to + view.from) / 2, view.to - view.from);
    const box = this.$("timeline-box"), y = MARGIN + t * view.height;
    if (y < box.scrollTop + MARGIN || y + view.height > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
    this.openDetails({ row, track });
    this.say(this.describe({ row, track }));
  }

  // Keys of Perfetto's timeline, and arrows from row to row.
  key(event) {
    const { from, to, rows } = this.view, span = to - from, { chosen } = this;
    const middle = chosen < 0 || !rows ? (from + to) / 2 : (rows.start[chosen] + rows.end[chosen]) / 2;
    const does = {
      w: () => this.zoom(0.7, middle), s: () => this.zoom(1 / 0.7, middle),
      a: () => this.look(from - span / 5, span), d: () => this.look(from + span / 5, span), 0: () => this.look(0, this.whole()),
      ArrowLeft: () => this.step(-1, 0), ArrowRight: () => this.step(1, 0), ArrowUp: () => this.step(0, -1), ArrowDown: () => this.step(0, 1),
      Enter: () => this.step(0, 0), Escape: () => this.closeDetails(),
    }[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!does || !this.view.rows || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    does();
    this.looked(this.view.from, this.view.to);
  }

  // Shows the time from `from` on for `span` ns, as far as the step has it.
  look(from, span) {
    span = Math.min(this.whole(), Math.max(SHORTEST, span));
    this.view.from = Math.min(Math.max(0, from), this.whole() - span);
    this.view.to = this.view.from + span;
    this.redraw();
  }

  zoom(factor, at) {
    const { from, to } = this.view;
    const span = Math.min(this.whole(), Math.max(SHORTEST, (to - from) * factor));
    this.look(at - ((at - from) * span) / (to - from), span);
  }

  listen() {
    const redraw = () => this.redraw();
    this.$("height").addEventListener("change", () => { if (this.view.rows) { this.fitHeight(); this.redraw(); } });
    this.$("fold").addEventListener("change", () => this.show(...Object.values(this.asks)));
    this.$("canvas").addEventListener("keydown", (event) => this.key(event));
    this.$("timeline-box").addEventListener("scroll", redraw);
    addEventListener("resize", redraw);
    addEventListener("keydown", (event) => { if (event.key === "Escape") this.closeDetails(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }
}

// What the wheel, a mouse and fingers do on a timeline's canvas: zoom, move, name a row, show its facts.
class Pointer {
  constructor(chart) {
    Object.assign(this, { chart, canvas: chart.$("canvas"), held: new Map(), moved: 0 }); // `held`: id -> last event
    const on = (kind, does, options) => this.canvas.addEventListener(kind, (event) => { if (chart.view.rows) does.call(this, event); }, options);
    on("wheel", this.wheel, { passive: false });
    on("click", this.click);
    on("pointermove", this.move);
    on("dblclick", () => { chart.look(0, chart.whole()); this.tell(); });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.moved = 0;
      this.canvas.setPointerCapture(event.pointerId);
      this.held.set(event.pointerId, event);
    });
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, (event) => this.held.delete(event.pointerId));
  }

  tell() { this.chart.looked(this.chart.view.from, this.chart.view.to); }

  wheel(event) {
    if (event.shiftKey) return;
    event.preventDefault();
    this.chart.zoom(Math.exp(event.deltaY * 0.002), this.chart.rowAt(event).time);
    this.tell();
  }

  click(event) {
    if (this.moved > 4) return; // pixels: it was moved
    const found = this.chart.rowAt(event);
    if (found.row >= 0) this.chart.openDetails(found);
    else this.chart.closeDetails();
  }

  move(event) {
    const { chart, canvas, held } = this, before = held.get(event.pointerId);
    if (!before) {
      const found = chart.rowAt(event);
      if (found.row >= 0) chart.say(chart.describe(found));
      return;
    }
    held.set(event.pointerId, event);
    this.moved += Math.abs(before.clientX - event.clientX) + Math.abs(before.clientY - event.clientY);
    if (held.size === 2) {
      const [other] = [...held.values()].filter((p) => p.pointerId !== event.pointerId);
      const gap = (p) => Math.max(20, Math.abs(p.clientX - other.clientX)); // pixels
      chart.zoom(gap(before) / gap(event), chart.rowAt(other).time);
    } else {
      const span = chart.view.to - chart.view.from;
      chart.look(chart.view.from + ((before.clientX - event.clientX) / canvas.clientWidth) * span, span);
      chart.$("timeline-box").scrollTop += before.clientY - event.clientY;
    }
    this.tell();
  }
}
