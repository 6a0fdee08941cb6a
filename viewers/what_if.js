"use strict";
// Another GPU, host, network or a slow rank: the server simulates the recorded run again.

// The form of the section; sliders are exponents of 2.
class WhatIf {
  constructor(served) {
    Object.assign(this, { run: served.run, before: served.recorded, form: document.getElementById("what-if-form"), found: [] });
    document.getElementById("what-if").hidden = false;
    options(this.form.gpu, [["", "as recorded"], ...served.what_if.map((name) => [name, name])]);
    for (const slider of this.form.querySelectorAll("[type=range]")) slider.addEventListener("input", () => this.label(slider));
    this.form.querySelectorAll("[type=range]").forEach((slider) => this.label(slider));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.simulate(); });
  }

  factor(name) { return 2 ** Number(this.form[name].value); }

  label(slider) { slider.parentElement.querySelector("output").textContent = `× ${amount(this.factor(slider.name))}`; }

  // What differs from the recorded run, in words.
  words() {
    const parts = [this.form.gpu.value];
    for (const [name, words] of [["host", "host time"], ["links", "links"], ["straggler", "rank 0"]])
      if (this.factor(name) !== 1) parts.push(`${words} × ${amount(this.factor(name))}`);
    return parts.filter(Boolean).join(", ");
  }

  async simulate() {
    const words = this.words(), button = this.form.querySelector("button");
    if (!words) return this.say("Choose a change first.");
    const query = new URLSearchParams({ run: this.run, gpu: this.form.gpu.value });
    for (const name of ["host", "links", "straggler"]) query.set(name, this.factor(name).toPrecision(6));
    button.disabled = true;
    this.say(`Simulating ${words} …`);
    try {
      const answer = await fetch(`/what-if.json?${query}`);
      if (!answer.ok) throw new Error(await answer.text());
      this.found.push([words, await answer.json()]);
      this.say("");
    } catch (error) {
      this.say(error.message);
    } finally {
      button.disabled = false;
    }
  }

  // The recorded step and those of all changes so far, on one scale; then error bar, memory and cost.
  say(words) {
    const rows = [["as recorded", this.before], ...this.found], { before } = this;
    const bar = ({ times, error, error_above: above }) => (error === null ? "-" : `${duration(times.time * (1 - error))} to ${duration(times.time * (1 + above))}`);
    fill("what-if-result", ...(words ? [element("p", { textContent: words })] : []), ...(this.found.length ? [
      causes(), bars(rows.map(([name, found]) => [name, parts(found.times), duration(found.times.time)]), stallColors, duration),
      table(rows, [
        ["change", ([name]) => name, text], ["step", ([, found]) => found.times.time, duration],
        ["against recorded", ([, found]) => (found === before ? null : found.times.time / before.times.time - 1), (x) => (x === null ? "-" : signed(percent)(x))],
        ["error bar", ([, found]) => bar(found), text], ["memory", ([, found]) => (found.memory ? `${size(found.memory)} of ${size(found.capacity)}${found.memory > found.capacity ? ": does not fit" : ""}` : "-"), text],
        [before.tokens ? "$ per million tokens" : "$ per 1,000 steps", ([, found]) => found.dollars, (x) => (x === null ? "no price" : amount(x))],
      ])] : []));
  }
}
