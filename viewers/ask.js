"use strict";
// The form of `phantora compare`: it starts the command, shows its progress, then its verdict and table.

const form = document.getElementById("form"), byId = (id) => document.getElementById(id);
fill("known", ...data.gpus.map((value) => element("option", { value })));
form.elements.gpus.value = data.chosen;
form.elements.count.value = "8";
const money = (x) => (x === null ? "-" : `$${x >= 100 ? count(x) : Number(x.toPrecision(3))}`);
const rounded = (x) => String(Number(x.toPrecision(3)));
const days = (s) => (s >= 172800 ? `${rounded(s / 86400)} d` : `${rounded(s / 3600)} h`);

async function send(path) {
  const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value.trim()));
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields) }).catch(() => null);
  if (answer?.ok) return look();
  byId("says").textContent = answer ? await answer.text() : "The server does not answer any more: start phantora view again.";
}

function show(state) {
  byId("start").disabled = state.running;
  byId("stop").hidden = !state.running;
  byId("progress").hidden = !state.command;
  byId("command").textContent = state.command ?? "";
  byId("bar").style.width = `${state.of ? (100 * state.done) / state.of : 0}%`;
  fill("lines", ...state.lines.map((line) => element("div", { textContent: line })));
  byId("says").textContent = state.running ? (state.of ? `${state.done} of ${state.of} runs` : "starting") : state.error ?? "";
  byId("answer").hidden = !state.answer;
  if (state.answer) showAnswer(state.answer);
}

function showAnswer({ verdict, best, machines }) {
  fill("verdict", ...verdict.map((line) => element("p", { textContent: line })));
  const unit = machines.find((row) => row.rate !== null)?.unit ?? "tokens", varied = machines.some((row) => row.value !== null);
  const job = machines.some((row) => row.time_seconds !== null), of = (name, shown) => [(row) => row[name], (x) => (x === null ? "-" : shown(x))];
  fill("table", table(machines, [
    ...(varied ? [["value", (row) => row.value, String]] : []), ["machine", (row) => row.cluster + (best.includes(row.cluster) ? " ← chosen" : ""), text],
    ["memory", ...of("memory_bytes", size)], ["of", ...of("capacity_bytes", size)], ["step", ...of("step_time_ns", duration)], ["±", ...of("error", percent)], [`${unit}/s`, ...of("rate", amount)], ["MFU", ...of("mfu", percent)],
    ["speed", ...of("speedup", (x) => x.toFixed(2))], [`J/${unit.replace(/s$/, "")}`, ...of("joules", rounded)], ["$/h", ...of("dollars_per_hour_dollars", money)], [`$ per M ${unit}`, ...of("dollars_per_million_dollars", money)],
    ...(job ? [["time", ...of("time_seconds", days)], ["cost", ...of("dollars", money)]] : []), ...(machines.some((row) => row.status !== "ran") ? [["end", (row) => row.status, text]] : []),
  ]));
}

async function look() {
  const answer = await fetch("/state.json").catch(() => null);
  if (!answer?.ok) return void (byId("says").textContent = "The server does not answer any more: start phantora view again.");
  const state = await answer.json();
  show(state);
  if (state.running) setTimeout(look, 500);
}

form.addEventListener("submit", (event) => { event.preventDefault(); send("/start"); });
byId("stop").addEventListener("click", () => send("/stop"));
look();
