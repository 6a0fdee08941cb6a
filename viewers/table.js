"use strict";
// Tables. A click on a title sorts; a long table has a field to search in. On phones a row becomes a few lines.

// `columns`: [title, row => value, show]; text is aligned to the left. `most` rows are shown, of those that match.
function table(rows, columns, most = 100) {
  if (!rows.length) return element("p", { className: "soft", textContent: "None." });
  const state = { by: null, down: true, words: "" };
  const body = element("tbody"), left = element("p", { className: "soft" });
  const titles = columns.map(([title, value, show], i) => {
    const button = element("button", { textContent: title, className: "sort", disabled: rows.length < 2 });
    button.addEventListener("click", () => {
      state.down = state.by === i ? !state.down : show !== text;
      state.by = i;
      draw();
    });
    return element("th", { className: show === text ? "text" : "" }, button);
  });
  function draw() {
    const found = ordered(matching(rows, columns, state.words), columns, state);
    titles.forEach((title, i) => title.setAttribute("aria-sort", state.by !== i ? "none" : state.down ? "descending" : "ascending"));
    body.replaceChildren(...found.slice(0, most).map((row) => tableRow(row, columns)));
    left.textContent = found.length > most ? `The first ${most} of ${found.length}.` : found.length ? "" : "None has these words.";
  }
  draw();
  const search = element("input", { type: "search", placeholder: "search", className: "search" });
  search.addEventListener("input", () => { state.words = search.value; draw(); });
  return element("div", {}, ...(rows.length > 12 ? [search] : []),
    element("div", { className: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...titles)), body)), left);
}

function tableRow(row, columns) {
  return element("tr", {}, ...columns.map(([title, value, show]) => {
    const shown = show(value(row));
    const cell = element("td", { textContent: shown, className: show === text ? "text" : "", title: show === text ? shown : "" });
    cell.setAttribute("data-title", title); // what stands before the value on phones
    return cell;
  }));
}

// Rows whose texts have all of the words.
function matching(rows, columns, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return rows;
  return rows.filter((row) => {
    const texts = columns.filter(([, , show]) => show === text).map(([, value]) => String(value(row))).join(" ").toLowerCase();
    return wanted.every((word) => texts.includes(word));
  });
}

// By the chosen column; what has no value comes last.
function ordered(rows, columns, { by, down }) {
  if (by === null) return rows;
  const value = columns[by][1], missing = (x) => x === null || x === undefined || x === "";
  const order = (a, b) => missing(a) || missing(b) ? missing(a) - missing(b) : (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
  return [...rows].sort((a, b) => order(value(a), value(b)));
}
