"use strict";
// Canvas timelines of one step: what rows.js paints, with a scale, labels, names, the critical path, and what the
// pointer does. A page may hold several; their elements' ids begin with a prefix each.

const MARGIN = 22, MOST = 420; // pixels: the scale above the tracks, and the height of all
const NAMED = 40; // pixels from which on a bar shows its name

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

async function loadRows(run, step) {
  const [answer] = await Promise.all([fetch(`/rows.arrow?run=${run}&step=${step}`), loadArrow()]);
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
const leftOf = (width) => (width < 500 ? 44 : width < 900 ? 92 : 244); // labels of tracks

// The timeline of `run`, whose classes of work have `colors`. `looked` is called with (from, to) when the user moves it.
function timeline(run, prefix, colors, looked = () => {}) {
  const $ = (id) => document.getElementById(prefix + id);
  // `least`: ns that are shown at least, so that two timelines can share a scale.
  const view = { rows: null, step: null, rank: null, cls: "", from: 0, to: 1, least: 0, tracks: [], height: 14, image: null };
  const whole = () => Math.max(view.rows.length, view.least);

  async function show(step, rank, cls) {
    $("timeline").hidden = false;
    $("timeline-step").textContent = `step ${step}${rank === null ? "" : `, rank ${rank}`}`;
    const say = (words) => { $("timeline-text").textContent = words; };
    const changed = step !== view.step;
    Object.assign(view, { step, rank, cls });
    if (changed) {
      say("Loading …");
      close();
      view.rows = null;
      const rows = await loadRows(run, step).catch((error) => error);
      if (view.step !== step) return;
      if (rows instanceof Error) return say(rows.message);
      view.rows = rows;
      say(`${count(rows.count)} rows`);
      [view.from, view.to] = [0, whole()];
    }
    if (!view.rows) return;
    view.tracks = view.rows.tracks.filter((t) => view.rank === null || t.rank === view.rank);
    fitHeight();
    const own = Object.fromEntries(view.rows.classes.map((c) => [c, colors[c] || "#888"]));
    fill(`${prefix}timeline-legend`, ...legend(view.rows.classes, own).children);
    redraw();
  }

  // Height of a track: as chosen, or so that all are seen, or, unasked, readable unless they are very many.
  function fitHeight() {
    const chosen = $("height").value, all = (MOST - MARGIN) / view.tracks.length;
    view.height = chosen === "all" ? Math.min(14, all) : chosen ? Number(chosen) : view.tracks.length > 64 ? Math.min(14, all) : 14;
  }

  let asked = false;
  function redraw() {
    if (asked) return; // once a frame, whatever the pointer does
    asked = true;
    requestAnimationFrame(() => { asked = false; self.draw(); });
  }

  function draw() {
    const canvas = $("canvas"), box = $("timeline-box"), rows = view.rows;
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
    const x = (time) => left + (time - view.from) * scale;
    if (height >= 12) drawNames(pen, x, scale, top, first, last, width);
    drawPath(pen, x, top, first, last);
    pen.restore();
    pen.fillStyle = getComputedStyle(document.body).color;
    let under = MARGIN; // labels that would touch are left out
    for (let t = first; t < last; t++) {
      const track = view.tracks[t], y = MARGIN + (t + 0.5) * height - top + 4;
      if (y < under) continue;
      pen.fillText(label(track, width), 3, y);
      under = y + 12;
    }
    const most = width < 500 ? 3 : 7;
    for (let i = 0; i < most; i++) {
      const at = view.from + ((view.to - view.from) * i) / most, x = left + ((width - left) * i) / most;
      pen.fillRect(x, 12, 1, 7);
      pen.fillText(duration(at), x + 3, 16);
    }
  }

  function label(track, width) {
    if (width < 500) return `${track.rank}:${track.stream}`;
    if (width < 900) return `rank ${track.rank} : ${track.stream}`;
    const name = view.rows.streams[`${track.rank}:${track.stream}`] || `stream ${track.stream}`;
    return `rank ${track.rank} / ${name.length > 30 ? `${name.slice(0, 29)}…` : name}`;
  }

  // The names of bars that are wide enough; those that are not are passed over pixel by pixel, as paintTrack does.
  function drawNames(pen, x, scale, top, first, last, width) {
    const rows = view.rows, op = rows.words.op, name = rows.words.name;
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = "#000";
    for (let t = first; t < last; t++) {
      const track = view.tracks[t], y = MARGIN + (t + 0.5) * view.height - top + 3;
      let row = firstAfter(rows.end, view.from, track.first, track.last);
      while (row < track.last && rows.start[row] < view.to) {
        const a = Math.max(x(view.from), x(rows.start[row])), b = Math.min(width, x(rows.end[row]));
        if (b - a < NAMED) {
          row = b - a > 1 ? row + 1 : firstAfter(rows.end, Math.max(rows.end[row], rows.start[row] + 1 / scale), row + 1, track.last);
          continue;
        }
        const text = (op[rows.op[row]] || name[rows.name[row]]).replace(/^aten::|^ncclDevKernel_/, "");
        const most = Math.floor((b - a - 6) / 5.5);
        pen.fillText(text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text, a + 3, y);
        row++;
      }
    }
    pen.font = "11px system-ui, sans-serif";
  }

  // All tracks that are seen, pixel by pixel: its cost does not grow with the number of rows.
  function paint(pen, wide, high, left, top, ratio) {
    const rows = view.rows, card = variable("--card"), back = ink(card, card, 1);
    if (!view.image || view.image.width !== wide || view.image.height !== high) view.image = pen.createImageData(wide, high);
    const pixels = new Uint32Array(view.image.data.buffer), line = new Uint32Array(wide - left);
    const palette = rows.words.cls.map((name) => {
      const color = colors[name] || "#888", share = view.cls && name !== view.cls ? 0.12 : 1;
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
    const canvas = $("canvas"), area = canvas.getBoundingClientRect(), left = leftOf(area.width);
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

  // All that is known of a row, beside its bar.
  function open({ row, track }, event) {
    const rows = view.rows, word = (column) => rows.words[column][rows[column][row]], wait = rows.ready[row] - rows.start[row];
    const took = rows.end[row] - rows.start[row], error = rows.error[row], flops = rows.flops[row];
    const facts = [
      ["kernel", word("name")], ["operator", word("op")], ["shapes", word("shape")], ["class", word("cls")], ["module", word("module")],
      ["where", `rank ${track.rank}, ${rows.streams[`${track.rank}:${track.stream}`] || `stream ${track.stream}`}`],
      ["duration", duration(took) + (Number.isNaN(error) ? "" : ` ± ${percent(error)}`)], ["waits", wait ? duration(wait) : ""],
      ["begins", duration(rows.start[row])], ["launched", rows.launch[row] + rows.origin >= 0 ? `${duration(rows.start[row] - rows.launch[row])} before` : ""],
      ["flops", flops ? `${flops.toExponential(2)}, ${(flops / took / 1e3).toFixed(1)} TFLOP/s` : ""],
      ["bytes", rows.bytes[row] ? `${size(rows.bytes[row])}, ${rate((rows.bytes[row] / took) * 1e9)}` : ""], ["rests on", word("provenance")],
    ];
    const box = $("details"), around = $("timeline").getBoundingClientRect();
    const lines = facts.filter(([, value]) => value).map(([name, value]) =>
      element("tr", {}, element("th", { className: "text", textContent: name }), element("td", { className: "text", textContent: value })));
    const button = element("button", { textContent: "×", title: "close", className: "close" });
    button.addEventListener("click", close);
    box.replaceChildren(button, element("table", {}, element("tbody", {}, ...lines)));
    box.hidden = false;
    const wide = Math.min(420, around.width - 16);
    box.style.width = `${wide}px`;
    box.style.left = `${Math.max(8, Math.min(event.clientX - around.left + 12, around.width - wide - 8))}px`;
    box.style.top = `${event.clientY - around.top + 12}px`;
  }

  function close() { $("details").hidden = true; }

  // Shows the time from `from` on for `span` ns, as far as the step has it.
  function look(from, span) {
    span = Math.min(whole(), Math.max(20, span));
    view.from = Math.min(Math.max(0, from), whole() - span);
    view.to = view.from + span;
    redraw();
  }

  function zoom(factor, at) {
    const span = Math.min(whole(), Math.max(20, (view.to - view.from) * factor));
    look(at - ((at - view.from) * span) / (view.to - view.from), span);
  }

  function listen() {
    const canvas = $("canvas"), box = $("timeline-box"), held = new Map();
    let moved = 0;
    const tell = () => looked(view.from, view.to);
    canvas.addEventListener("wheel", (event) => {
      if (!view.rows || event.shiftKey) return;
      event.preventDefault();
      zoom(Math.exp(event.deltaY * 0.002), rowAt(event).time);
      tell();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { moved = 0; canvas.setPointerCapture(event.pointerId); held.set(event.pointerId, event); });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => held.delete(event.pointerId));
    canvas.addEventListener("click", (event) => {
      if (!view.rows || moved > 4) return;
      const found = rowAt(event);
      if (found.row >= 0) open(found, event);
      else close();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!view.rows) return;
      const before = held.get(event.pointerId);
      if (!before) {
        const found = rowAt(event);
        if (found.row >= 0) $("timeline-text").textContent = describe(found);
        return;
      }
      held.set(event.pointerId, event);
      moved += Math.abs(before.clientX - event.clientX) + Math.abs(before.clientY - event.clientY);
      if (held.size === 2) {
        const [other] = [...held.values()].filter((p) => p.pointerId !== event.pointerId);
        const gap = (p) => Math.max(20, Math.abs(p.clientX - other.clientX));
        zoom(gap(before) / gap(event), rowAt(other).time);
        return tell();
      }
      const span = view.to - view.from;
      look(view.from + ((before.clientX - event.clientX) / canvas.clientWidth) * span, span);
      box.scrollTop += before.clientY - event.clientY;
      tell();
    });
    canvas.addEventListener("dblclick", () => { if (view.rows) { look(0, whole()); tell(); } });
    $("height").addEventListener("change", () => { if (view.rows) { fitHeight(); redraw(); } });
    box.addEventListener("scroll", redraw);
    addEventListener("resize", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  listen();
  const self = { view, show, draw, look, zoom };
  return self;
}
