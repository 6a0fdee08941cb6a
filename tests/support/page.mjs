// Runs a page of `phantora view` under Node, on as much of a document as the pages use.
//
//   node page.mjs URL WIDTH < actions.json > answers.json
//
// The page and all that it asks for come from the server. An action is a list, its answer a text or null:
//   ["text", id]            what the element with this id shows
//   ["wait", id, text]      the same, as soon as it contains `text`
//   ["choose", id, value]   in a list of choices
//   ["point", x, y]         the pointer goes to this place of the canvas
//   ["click", x, y]         it clicks there
//   ["pixel", x, y]         colour of the canvas, "#rrggbb"
//   ["written"]             the words on the canvas
import fs from 'node:fs';
import vm from 'node:vm';

const [, , url, width] = process.argv;
const token = new URL(url).searchParams.get('token');
const get = globalThis.fetch;  // the page is given its own
const ask = (path) => {
  const to = new URL(path, url);
  to.searchParams.set('token', token);
  return get(to);
};

const byId = new Map();
class Element {
  constructor(tag) {
    Object.assign(this, {tag, children: [], listeners: {}, style: {}, attributes: {}, scrollTop: 0, hidden: false, own: '',
      classList: {toggle() {}}});
    this.clientWidth = Number(width);
  }
  set id(id) { byId.set(id, this); }
  get clientHeight() { return parseFloat(this.style.height) - 2; }
  get textContent() { return this.own + this.children.map((c) => c.textContent ?? c).join(' '); }
  set textContent(text) { this.children = []; this.own = String(text); }
  get value() { return this.chosen ?? this.children[0]?.value ?? ''; }
  set value(value) { this.chosen = String(value); }
  append(...children) {
    this.children.push(...children);
    for (const child of children) if (child.tag === 'script') load(child);
  }
  replaceChildren(...children) { this.own = ''; this.children = children; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(kind, listener) { (this.listeners[kind] ??= []).push(listener); }
  fire(kind, event = {}) { for (const listener of this.listeners[kind] ?? []) listener(event); }
  getBoundingClientRect() { return {left: 0, top: 0, width: this.clientWidth, height: this.clientHeight}; }
  getContext() { return pen; }
  setPointerCapture() {}
}
async function load(script) {
  const answer = await ask(script.src);
  if (!answer.ok) return script.fire('error');
  vm.runInThisContext(await answer.text(), {filename: script.src});
  script.fire('load');
}

// The canvas: pixels as they are put, words as they are written; lines and clips leave no trace.
let image = null, written = [];
const pen = new Proxy({
  createImageData: (w, h) => ({width: w, height: h, data: new Uint8ClampedArray(4 * w * h)}),
  putImageData: (put) => { image = put; written = []; },
  fillText: (words) => written.push(words),
}, {get: (own, name) => own[name] ?? (() => {}), set: () => true});

const page = await (await ask(url)).text();
for (const [, tag, id] of page.matchAll(/<(\w+)[^>]* id="([^"]+)"/g)) new Element(tag).id = id;
const colors = Object.fromEntries(
    [...page.match(/:root \{([^}]*)\}/)[1].matchAll(/(--[\w-]+): ([^;]+);/g)].map(([, name, value]) => [name, value]));
const [, data] = page.match(/<script type="application\/json" id="data">([^]*?)<\/script>/);
byId.get('data').textContent = data;
const set = (name, value) => Object.defineProperty(globalThis, name, {value, writable: true, configurable: true});
const document = {
  getElementById: (id) => byId.get(id), querySelectorAll: () => [], createElement: (tag) => new Element(tag), createElementNS: (_, tag) => new Element(tag),
  head: new Element('head'), body: new Element('body'), documentElement: new Element('html'),
};
for (const [name, value] of Object.entries({
  document, devicePixelRatio: 1, location: new URL(url), history: {replaceState: () => {}}, addEventListener: () => {},
  fetch: ask, matchMedia: () => ({addEventListener: () => {}}), requestAnimationFrame: (draw) => setImmediate(draw),
  getComputedStyle: () => ({color: colors['--text'], getPropertyValue: (color) => colors[color] ?? ''}),
})) set(name, value);
for (const [, script] of page.matchAll(/<script>([^]*?)<\/script>/g)) vm.runInThisContext(script, {filename: 'page'});

const settled = () => new Promise((done) => setTimeout(done, 5));
const actions = {
  text: (id) => byId.get(id).textContent,
  async wait(id, text) {
    for (let left = 2000; left && !byId.get(id).textContent.includes(text); left--) await settled();
    return byId.get(id).textContent;
  },
  async choose(id, value) {
    byId.get(id).value = value;
    byId.get(id).fire('change');
    await settled();
  },
  click: (x, y) => byId.get('canvas').fire('click', {clientX: x, clientY: y}),
  point: (x, y) => byId.get('canvas').fire('pointermove', {clientX: x, clientY: y}),
  pixel: (x, y) => '#' + Buffer.from(image.data.slice(4 * (y * image.width + x)).slice(0, 3)).toString('hex'),
  written: () => written.join('|'),
};
const answers = [];
for (const [name, ...rest] of JSON.parse(fs.readFileSync(0, 'utf8'))) {
  answers.push((await actions[name](...rest)) ?? null);
}
fs.writeFileSync(1, JSON.stringify(answers));
process.exit(0);
