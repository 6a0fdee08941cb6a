"use strict";
// The canvas timeline of one step: what rows.js paints, with a scale, labels, the critical path, and what the pointer does.

const view = { rows: null, step: null, rank: null, cls: "", from: 0, to: 1, tracks: [], height: 14, image: null };
const MARGIN = 22, MOST = 420; // pixels: the scale above the tracks, and the height of all

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

async function loadRows(step) {
  const [answer] = await Promise.all([fetch(`/rows.arrow?run=${data.served.run}&step=${step}`), loadArrow()]);
  if (!answer.ok) throw new Error(await answer.text());
  return readRows(await answer.arrayBuffer());
}

async function showTimeline(step, rank, cls) {
  document.getElementById("timeline").hidden = false;
  document.getElementById("timeline-step").textContent = `step ${step}${rank === null ? "" : `, rank ${rank}`}`;
  const say = (words) => { document.getElementById("timeline-text").textContent = words; };
  const changed = step !== view.step;
  Object.assign(view, { step, rank, cls });
  if (changed) {
    say("Loading …");
    view.rows = null;
    const rows = await loadRows(step).catch((error) => error);
    if (view.step !== step) return;
    if (rows instanceof Error) return say(rows.message);
    view.rows = rows;
    say(`${count(rows.count)} rows`);
    [view.from, view.to] = [0, rows.length];
  }
  if (!view.rows) return;
  view.tracks = view.rows.tracks.filter((t) => view.rank === null || t.rank === view.rank);
  fitHeight();
  const own = Object.fromEntries(view.rows.classes.map((c) => [c, classColors[c] || "#888"]));
  fill("timeline-legend", ...legend(view.rows.classes, own).children);
  redraw();
}

// Height of a track: as chosen, or so that all are seen, or, unasked, readable unless they are very many.
function fitHeight() {
  const chosen = document.getElementById("height").value, all = (MOST - MARGIN) / view.tracks.length;
  view.height = chosen === "all" ? Math.min(14, all) : chosen ? Number(chosen) : view.tracks.length > 64 ? Math.min(14, all) : 14;
}

let asked = false;
function redraw() {
  if (asked) return; // once a frame, whatever the pointer does
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}

// "#rgb" or "#rrggbb", mixed with `back` by `share`, as the canvas' memory holds it.
function ink(color, back, share) {
  const parts = (text) => (text.length === 4 ? [1, 2, 3].map((i) => text[i] + text[i]) : [1, 3, 5].map((i) => text.slice(i, i + 2))).map((h) => parseInt(h, 16));
  const [a, b] = [parts(color), parts(back)];
  const [red, green, blue] = a.map((value, i) => Math.round(value * share + b[i] * (1 - share)));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const leftOf = (width) => (width < 500 ? 44 : 92); // labels of tracks

function draw() {
  const canvas = document.getElementById("canvas"), box = document.getElementById("timeline-box"), rows = view.rows;
  if (!rows) return;
  const ratio = devicePixelRatio || 1, height = view.height, whole = Math.ceil(MARGIN + view.tracks.length * height);
  box.style.height = `${Math.min(whole, MOST) + 2}px`;
  const width = box.clientWidth, visible = box.clientHeight;
  // The canvas covers what is seen; the margins around it make the box scroll over all tracks.
  const top = Math.min(box.scrollTop, Math.max(0, whole - visible));
  const [wide, high] = [Math.floor(width * ratio), Math.floor(visible * ratio)];
  if (wide <= 0 || high <= 0) return; // not laid out: the page is on its way in or out
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  canvas.style.height = `${visible}px`;
  canvas.style.marginTop = `${top}px`;
  canvas.style.marginBottom = `${Math.max(0, whole - visible - top)}px`;
  const pen = canvas.getContext("2d");
  const left = leftOf(width), scale = (width - left) / (view.to - view.from);
  paint(pen, wide, high, Math.floor(left * ratio), top, ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = "11px system-ui, sans-serif";
  const first = Math.max(0, Math.floor((top - MARGIN) / height)), last = Math.min(view.tracks.length, Math.ceil((top + visible - MARGIN) / height));
  pen.save();
  pen.beginPath();
  pen.rect(left, MARGIN, width - left, visible);
  pen.clip();
  drawPath(pen, (time) => left + (time - view.from) * scale, top, first, last);
  pen.restore();
  pen.fillStyle = getComputedStyle(document.body).color;
  let under = MARGIN; // labels that would touch are left out
  for (let t = first; t < last; t++) {
    const track = view.tracks[t], y = MARGIN + (t + 0.5) * height - top + 4;
    if (y < under) continue;
    pen.fillText(width < 500 ? `${track.rank}:${track.stream}` : `rank ${track.rank} : ${track.stream}`, 3, y);
    under = y + 12;
  }
  const most = width < 500 ? 3 : 7;
  for (let i = 0; i < most; i++) {
    const at = view.from + ((view.to - view.from) * i) / most, x = left + ((width - left) * i) / most;
    pen.fillRect(x, 12, 1, 7);
    pen.fillText(duration(at), x + 3, 16);
  }
}

// All tracks that are seen, pixel by pixel: its cost does not grow with the number of rows.
function paint(pen, wide, high, left, top, ratio) {
  const rows = view.rows, card = variable("--card"), back = ink(card, card, 1);
  if (!view.image || view.image.width !== wide || view.image.height !== high) view.image = pen.createImageData(wide, high);
  const pixels = new Uint32Array(view.image.data.buffer), line = new Uint32Array(wide - left);
  const palette = rows.words.cls.map((name) => {
    const color = classColors[name] || "#888", share = view.cls && name !== view.cls ? 0.12 : 1;
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

function drawPath(pen, x, top, first, last) {
  const place = new Map(view.tracks.slice(first, last).map((track, i) => [`${track.rank}:${track.stream}`, first + i]));
  const thick = Math.min(2, Math.max(1, view.height));
  pen.fillStyle = variable("--late");
  for (const [rank, stream, start, end] of view.rows.path) {
    const t = place.get(`${rank}:${stream}`), a = x(start - view.rows.origin), b = x(end - view.rows.origin);
    if (t !== undefined) pen.fillRect(a, MARGIN + (t + 1) * view.height - top - thick, Math.max(0.7, b - a), thick);
  }
}

// What lies under a point of the canvas.
function rowAt(event) {
  const canvas = document.getElementById("canvas"), area = canvas.getBoundingClientRect(), left = leftOf(area.width);
  const track = view.tracks[Math.floor((event.clientY - area.top + parseFloat(canvas.style.marginTop || 0) - MARGIN) / view.height)];
  const time = view.from + ((event.clientX - area.left - left) / (area.width - left)) * (view.to - view.from);
  const row = track && event.clientX - area.left >= left ? rowOf(view.rows, track, time) : -1;
  return { time, row, track };
}

function describe({ row, track }) {
  const rows = view.rows, word = (column) => rows.words[column][rows[column][row]], wait = rows.ready[row] - rows.start[row];
  return `rank ${track.rank} stream ${track.stream} · ${word("op") || word("name")} · ${word("cls") || "no class"} · ` +
    `${duration(rows.end[row] - rows.start[row])}${wait ? `, waits ${duration(wait)}` : ""} · at ${duration(rows.start[row])} · ${word("name").slice(0, 120)}`;
}

// Shows the time from `from` on for `span` ns, as far as the step has it.
function look(from, span) {
  span = Math.min(view.rows.length, Math.max(20, span));
  view.from = Math.min(Math.max(0, from), view.rows.length - span);
  view.to = view.from + span;
  redraw();
}

function zoom(factor, at) {
  const span = Math.min(view.rows.length, Math.max(20, (view.to - view.from) * factor));
  look(at - ((at - view.from) * span) / (view.to - view.from), span);
}

{
  const canvas = document.getElementById("canvas"), box = document.getElementById("timeline-box"), held = new Map();
  canvas.addEventListener("wheel", (event) => {
    if (!view.rows || event.shiftKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY * 0.002), rowAt(event).time);
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); held.set(event.pointerId, event); });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => held.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!view.rows) return;
    const before = held.get(event.pointerId);
    if (!before) {
      const found = rowAt(event);
      if (found.row >= 0) document.getElementById("timeline-text").textContent = describe(found);
      return;
    }
    held.set(event.pointerId, event);
    if (held.size === 2) {
      const [other] = [...held.values()].filter((p) => p.pointerId !== event.pointerId);
      const gap = (p) => Math.max(20, Math.abs(p.clientX - other.clientX));
      return zoom(gap(before) / gap(event), rowAt(other).time);
    }
    const span = view.to - view.from;
    look(view.from + ((before.clientX - event.clientX) / canvas.clientWidth) * span, span);
    box.scrollTop += before.clientY - event.clientY;
  });
  canvas.addEventListener("dblclick", () => view.rows && look(0, view.rows.length));
  document.getElementById("height").addEventListener("change", () => { if (view.rows) { fitHeight(); redraw(); } });
  box.addEventListener("scroll", redraw);
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
