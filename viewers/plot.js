"use strict";
// A plot of points and lines on logarithmic axes.

// 1, 2, 5, 10, ... from `low` to `high`, or both ends where none or one of these lies between.
function ticksOf(low, high) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    for (const digit of [1, 2, 5]) if (digit * power >= low && digit * power <= high) found.push(digit * power);
  return found.length > 1 ? found : [low, high];
}

// `points`: [{x, y, low, high, color, filled, title, label}]; low and high are the ends of an error bar. `lines`: lists of
// [x, y] with {color, dashed}. `x`, `y`: {title, show, ticks}. `width`: pixels there is room for.
function plot(width, points, lines, x, y) {
  const [w, h, left, bottom] = [Math.max(300, Math.min(1150, width)), 340, 76, 300];
  const made = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": `${y.title} against ${x.title}`, class: "chart fitted" });
  const axis = (values, from, to, { ticks, show, title }, upright) => {
    const [low, high] = [Math.min(...values), Math.max(...values)], room = high > low * 1.02 ? (Math.log(high / low) * 0.06) : 0.1;
    const [a, b] = [Math.log(low) - room, Math.log(high) + room], at = (value) => from + ((Math.log(value) - a) / (b - a)) * (to - from);
    for (const tick of ticks ?? ticksOf(low, high)) {
      const place = at(tick);
      made.append(svg("path", { d: upright ? `M${left},${place}H${w - 12}` : `M${place},14V${bottom}`, class: "grid" }));
      made.append(svg("text", upright ? { x: left - 6, y: place + 4, "text-anchor": "end", class: "tick" } : { x: place, y: bottom + 16, "text-anchor": "middle", class: "tick" }, show(tick)));
    }
    made.append(svg("text", upright ? { x: 2, y: 11, class: "tick" } : { x: w - 12, y: h - 6, "text-anchor": "end", class: "tick" }, title));
    return at;
  };
  const X = axis(points.map((p) => p.x), left, w - 12, x, false);
  const Y = axis([...points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), ...lines.flatMap(({ at }) => at.map(([, b]) => b))], bottom, 18, y, true);
  for (const { at, color, dashed } of lines)
    made.append(svg("polyline", { points: at.map(([a, b]) => `${X(a)},${Y(b)}`).join(" "), fill: "none", stroke: color, "stroke-width": 2, ...(dashed ? { "stroke-dasharray": "4 4" } : {}) }));
  const placed = [];
  for (const p of points) {
    if (p.low) made.append(svg("path", { d: `M${X(p.x)},${Y(p.low)}V${Y(p.high)}`, stroke: p.color, fill: "none" }));
    const circle = svg("circle", { cx: X(p.x), cy: Y(p.y), r: 6, stroke: p.color, "stroke-width": 2, fill: p.filled ? p.color : "var(--card)" });
    circle.append(svg("title", {}, p.title));
    made.append(circle);
    if (!p.label) continue;
    const onLeft = X(p.x) > w - 150, [from, to] = onLeft ? [X(p.x) - 9 - 6.5 * p.label.length, X(p.x) - 9] : [X(p.x) + 9, X(p.x) + 9 + 6.5 * p.label.length];
    let height = Y(p.y) + 4;
    for (let other; (other = placed.find((o) => from < o.to && to > o.from && Math.abs(height - o.height) < 13)); ) height = other.height + 13.5;
    placed.push({ from, to, height });
    made.append(svg("text", { x: onLeft ? to : from, y: height, "text-anchor": onLeft ? "end" : "start", class: "tick label" }, p.label));
  }
  return element("div", { className: "scroll" }, made);
}
