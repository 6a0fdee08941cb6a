"use strict";
// A step's rows and their picture. Nothing of the document is needed here, so that Node.js can check it.

// `buffer`: the Arrow stream of phantora/view/rows.py, decoded by Apache Arrow's own library. Times become ns since the
// step's begin; a track is a stream's stretch of rows.
function readRows(buffer) {
  const table = Arrow.tableFromIPC(new Uint8Array(buffer));
  const about = JSON.parse(table.schema.metadata.get("phantora.step"));
  const column = (name) => table.getChild(name).data[0]; // there is one batch
  const rows = { ...about, count: table.numRows, words: {} };
  for (const name of ["start", "end", "ready", "launch"]) rows[name] = times(column(name).values, about.origin);
  for (const name of ["error", "flops"]) rows[name] = column(name).values;
  rows.bytes = times(column("bytes").values, 0);
  for (const name of ["name", "op", "cls", "shape", "provenance", "module"]) {
    rows[name] = column(name).values;
    rows.words[name] = [...column(name).dictionary];
  }
  rows.classes = [...new Set([...new Set(rows.cls)].map((index) => rows.words.cls[index]))].sort();
  rows.tracks = tracks(column("rank").values, column("stream").values);
  return rows;
}

// 64-bit integers as doubles, which hold the ns of 104 days exactly; read in halves, as BigInt is slow.
function times(values, origin) {
  const halves = new Uint32Array(values.buffer, values.byteOffset, 2 * values.length), found = new Float64Array(values.length);
  for (let i = 0; i < found.length; i++) found[i] = halves[2 * i + 1] * 2 ** 32 + halves[2 * i] - origin;
  return found;
}

function tracks(rank, stream) {
  const found = [];
  for (let i = 0; i < rank.length; i++) {
    if (i && rank[i] === rank[i - 1] && stream[i] === stream[i - 1]) continue;
    if (found.length) found.at(-1).last = i;
    found.push({ rank: rank[i], stream: stream[i], first: i, last: rank.length });
  }
  return found;
}

// Index of the first row in [low, high) that ends after `time`; ends grow along a track. Looks near `low` first.
function firstAfter(ends, time, low, high) {
  let step = 1;
  for (; low + step < high && ends[low + step] <= time; step *= 2) low += step;
  high = Math.min(high, low + step);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

// One line of pixels of a track, from `from` (ns) on at `scale` pixels a ns, into `line` (one number a pixel).
// `palette`: class index -> {full, pale}; pale is a collective that waits for its last rank. The work is bounded by the
// width in pixels, not by the number of rows: of rows that share a pixel the first is drawn.
function paintTrack(line, rows, track, from, scale, palette, back) {
  line.fill(back);
  const width = line.length, to = from + width / scale;
  let row = firstAfter(rows.end, from, track.first, track.last);
  while (row < track.last && rows.start[row] < to) {
    const pixel = (time) => Math.floor((time - from) * scale);
    const a = Math.max(0, pixel(rows.start[row])), b = Math.min(width, Math.max(a + 1, pixel(rows.end[row])));
    const wait = rows.ready[row] > rows.start[row] ? Math.min(b, Math.max(a, pixel(rows.ready[row]))) : a;
    const colors = palette[rows.cls[row]], last = b - a > 4 ? b - 1 : b; // a line between long neighbours
    if (wait > a) line.fill(colors.pale, a, wait);
    line.fill(colors.full, wait, Math.max(last, Math.min(wait + 1, b)));
    row = b - a > 1 ? row + 1 : firstAfter(rows.end, from + (a + 1) / scale, row + 1, track.last);
  }
}

// The row of `track` at `time`, -1 for none.
function rowOf(rows, track, time) {
  const row = firstAfter(rows.end, time, track.first, track.last);
  return row < track.last && rows.start[row] <= time ? row : -1;
}
