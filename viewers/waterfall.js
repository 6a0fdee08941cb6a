"use strict";
// From one total to another: bars that hang one below the other.

// `first`, `last`: [name, value, color]; `changes`: [name, signed change, color]. `show` makes texts of values. The axis
// begins at `base`.
function waterfall(first, changes, last, show, base = 0) {
  const colors = { "": "transparent", [first[0]]: first[2], [last[0]]: last[2] };
  const rows = [[first[0], { [first[0]]: first[1] - base }, show(first[1])]];
  let level = first[1];
  for (const [name, change, color] of changes) {
    colors[name] = color;
    rows.push([name, { "": Math.max(0, Math.min(level, level + change) - base), [name]: Math.abs(change) }, signed(show)(change)]);
    level += change;
  }
  return bars([...rows, [last[0], { [last[0]]: last[1] - base }, show(last[1])]], colors, show);
}
