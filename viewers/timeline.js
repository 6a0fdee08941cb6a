"use strict";
// The canvas timeline of one step. Rows come packed from the server (phantora/view/rows.py). What is drawn
// depends on the width in pixels, not on the number of rows: of rows that share a pixel the first is drawn.

const view = { rows: null, step: null, rank: null, cls: "", from: 0, to: 1, tracks: [] };
const HEIGHT = 14, MARGIN = 22, MOST = 420; // pixels

function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let offset = 4 + length;
  for (const name of ["start", "end", "ready", "name"]) {
    header[name] = new Uint32Array(buffer, offset, header.rows);
    offset += 4 * header.rows;
  }
  header.cls = new Uint8Array(buffer, offset, header.rows);
  header.tracks.forEach((track, i) => { track.last = i + 1 < header.tracks.length ? header.tracks[i + 1].first : header.rows; });
  return header;
}

async function showTimeline(step, rank, cls) {
  document.getElementById("timeline").hidden = false;
  document.getElementById("timeline-step").textContent = `step ${step}${rank === null ? "" : `, rank ${rank}`}`;
  const changed = step !== view.step;
  Object.assign(view, { step, rank, cls });
  if (changed) {
    document.getElementById("timeline-text").textContent = "Loading …";
    const answer = await fetch(`/rows?run=${data.served.run}&step=${step}`);
    if (view.step !== step) return;
    view.rows = answer.ok ? unpack(await answer.arrayBuffer()) : null;
    document.getElementById("timeline-text").textContent = answer.ok ? `${count(view.rows.rows)} rows` : await answer.text();
    if (!view.rows) return;
    view.from = 0;
    view.to = view.rows.length / view.rows.unit;
  }
  if (!view.rows) return;
  view.tracks = view.rows.tracks.filter((t) => view.rank === null || t.rank === view.rank);
  const own = Object.fromEntries(view.rows.classes.map((c) => [c, classColors[c] || "#888"]));
  fill("timeline-legend", ...legend(view.rows.classes, own).children);
  requestAnimationFrame(draw);
}

// Index of the first row in [low, high) that ends after `time`; ends grow along a track.
function firstAfter(ends, time, low, high) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

function draw() {
  const canvas = document.getElementById("canvas"), box = document.getElementById("timeline-box"), rows = view.rows;
  if (!rows) return;
  const ratio = devicePixelRatio || 1, whole = MARGIN + view.tracks.length * HEIGHT;
  box.style.height = `${Math.min(whole, MOST) + 2}px`;
  const width = box.clientWidth, visible = box.clientHeight;
  // The canvas covers what is seen; the margins around it make the box scroll over all tracks.
  const top = Math.min(box.scrollTop, Math.max(0, whole - visible));
  canvas.width = width * ratio;
  canvas.height = visible * ratio;
  canvas.style.height = `${visible}px`;
  canvas.style.marginTop = `${top}px`;
  canvas.style.marginBottom = `${Math.max(0, whole - visible - top)}px`;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.body);
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, visible);
  pen.font = "11px system-ui, sans-serif";
  const left = width < 500 ? 44 : 92, scale = (width - left) / (view.to - view.from);
  const x = (time) => left + (time - view.from) * scale;
  const colors = rows.classes.map((c) => classColors[c] || "#888");
  const wanted = view.cls ? rows.classes.map((c) => c === view.cls) : null;
  pen.save();
  pen.beginPath();
  pen.rect(left, 0, width - left, visible);
  pen.clip();
  const first = Math.max(0, Math.floor((top - MARGIN) / HEIGHT)), last = Math.min(view.tracks.length, Math.ceil((top + visible - MARGIN) / HEIGHT));
  for (let t = first; t < last; t++) {
    const track = view.tracks[t], y = MARGIN + t * HEIGHT - top;
    let row = firstAfter(rows.end, view.from, track.first, track.last);
    while (row < track.last && rows.start[row] < view.to) {
      const a = Math.max(left, x(rows.start[row])), b = Math.min(width, x(rows.end[row]));
      pen.fillStyle = colors[rows.cls[row]];
      pen.globalAlpha = wanted && !wanted[rows.cls[row]] ? 0.12 : 1;
      if (rows.ready[row] > rows.start[row]) {
        const c = Math.min(b, Math.max(a, x(rows.ready[row]))), alpha = pen.globalAlpha;
        pen.globalAlpha = alpha * 0.35;
        pen.fillRect(a, y + 1, c - a, HEIGHT - 3);
        pen.globalAlpha = alpha;
        pen.fillRect(c, y + 1, Math.max(0.7, b - c), HEIGHT - 3);
      } else pen.fillRect(a, y + 1, Math.max(0.7, b - a - (b - a > 4 ? 0.6 : 0)), HEIGHT - 3);
      // Everything that ends within this pixel is passed over at once.
      row = b - a >= 1 ? row + 1 : Math.max(row + 1, firstAfter(rows.end, view.from + (Math.floor(a) + 1 - left) / scale, row + 1, track.last));
    }
  }
  pen.globalAlpha = 1;
  drawPath(pen, x, top, rows);
  pen.restore();
  pen.fillStyle = style.color;
  for (let t = first; t < last; t++) {
    const track = view.tracks[t], y = MARGIN + t * HEIGHT - top + HEIGHT - 4;
    if (y > MARGIN) pen.fillText(width < 500 ? `${track.rank}:${track.stream}` : `rank ${track.rank} : ${track.stream}`, 3, y);
  }
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--card");
  pen.fillRect(0, 0, width, MARGIN - 2);
  pen.fillStyle = style.color;
  const most = width < 500 ? 3 : 7;
  for (let i = 0; i < most; i++) {
    const at = view.from + ((view.to - view.from) * i) / most;
    pen.fillRect(x(at), 12, 1, 7);
    pen.fillText(duration(at * rows.unit), x(at) + 3, 16);
  }
}

function drawPath(pen, x, top, rows) {
  const place = new Map(view.tracks.map((track, i) => [`${track.rank}:${track.stream}`, i]));
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--late");
  for (const [rank, stream, start, end] of rows.path) {
    const t = place.get(`${rank}:${stream}`);
    if (t === undefined) continue;
    const a = x((start - rows.origin) / rows.unit), b = x((end - rows.origin) / rows.unit);
    pen.fillRect(a, MARGIN + (t + 1) * HEIGHT - top - 2, Math.max(0.7, b - a), 2);
  }
}

// What lies under a point of the canvas.
function rowAt(event) {
  const canvas = document.getElementById("canvas"), area = canvas.getBoundingClientRect(), rows = view.rows;
  const left = area.width < 500 ? 44 : 92;
  const t = Math.floor((event.clientY - area.top + parseFloat(canvas.style.marginTop || 0) - MARGIN) / HEIGHT), track = view.tracks[t];
  const time = view.from + ((event.clientX - area.left - left) / (area.width - left)) * (view.to - view.from);
  if (!track || event.clientX - area.left < left) return { time };
  const row = firstAfter(rows.end, time, track.first, track.last);
  return row < track.last && rows.start[row] <= time ? { time, row, track } : { time };
}

function describe({ row, track }) {
  const rows = view.rows, [name, op] = rows.names[rows.name[row]], unit = rows.unit;
  const wait = (rows.ready[row] - rows.start[row]) * unit;
  return `rank ${track.rank} stream ${track.stream} · ${op || name} · ${rows.classes[rows.cls[row]] || "no class"} · ` +
    `${duration((rows.end[row] - rows.start[row]) * unit)}${wait ? `, waits ${duration(wait)}` : ""} · at ${duration(rows.start[row] * unit)} · ${name.slice(0, 120)}`;
}

function zoom(factor, at) {
  const end = view.rows.length / view.rows.unit;
  const span = Math.min(end, Math.max(20 / view.rows.unit, (view.to - view.from) * factor));
  const from = Math.min(Math.max(0, at - ((at - view.from) * span) / (view.to - view.from)), end - span);
  view.from = from;
  view.to = from + span;
  requestAnimationFrame(draw);
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
      if (found.row !== undefined) document.getElementById("timeline-text").textContent = describe(found);
      return;
    }
    held.set(event.pointerId, event);
    if (held.size === 2) {
      const [other] = [...held.values()].filter((p) => p.pointerId !== event.pointerId);
      const gap = (p) => Math.max(20, Math.abs(p.clientX - other.clientX));
      return zoom(gap(before) / gap(event), rowAt(other).time);
    }
    const shift = ((before.clientX - event.clientX) / canvas.clientWidth) * (view.to - view.from);
    const end = view.rows.length / view.rows.unit, span = view.to - view.from;
    view.from = Math.min(Math.max(0, view.from + shift), end - span);
    view.to = view.from + span;
    box.scrollTop += before.clientY - event.clientY;
    requestAnimationFrame(draw);
  });
  canvas.addEventListener("dblclick", () => { view.from = 0; view.to = view.rows.length / view.rows.unit; draw(); });
  box.addEventListener("scroll", () => requestAnimationFrame(draw));
  addEventListener("resize", () => requestAnimationFrame(draw));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => requestAnimationFrame(draw));
}
