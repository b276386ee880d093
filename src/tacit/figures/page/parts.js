// What all kinds of figures share: colours, labels that keep apart, legends.

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', sans-serif";
const DASHES = [null, "6 3", "2 3"];
const COLOURS = 8; // --s0 … --s7 of look.css; references are --grey
export const color = (style) => (style < 0 ? "var(--grey)" : `var(--s${style % COLOURS})`);
export const dash = (style) => (style < 0 ? "3 3" : DASHES[Math.floor(style / COLOURS) % DASHES.length]);
const SYMBOLS = ["circle", "square", "triangle", "diamond", "star", "cross", "wye"];
export const symbol = (style) => (style < 0 ? "circle" : SYMBOLS[style % SYMBOLS.length]);

export const bytes = (value) => {
  if (!value) return "0 B";
  const power = Math.max(0, Math.min(4, Math.floor(Math.log10(Math.abs(value)) / 3)));
  const short = value / 1000 ** power;
  return `${short >= 100 || power === 0 ? short.toFixed(0) : +short.toFixed(1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
};
export const number = (value) => (Math.abs(value) >= 1e4 ? d3.format(",.3~s")(value) : String(+(+value).toPrecision(4)));
// Ticks of one axis have the same number of digits.
export const fixed = ([low, high]) => {
  const digits = d3.precisionFixed(d3.tickStep(low, high, 6) || 1);
  return (value) => (high >= 1e4 ? number(value) : value.toFixed(Math.min(digits, 6)));
};
export const shown = (axis) => (axis?.format === "bytes" ? bytes : number);

export const room = (names) => {
  const wide = document.createElement("canvas").getContext("2d");
  wide.font = `12px ${FONT}`;
  return Math.ceil(d3.max(names, (name) => wide.measureText(name).width) ?? 0);
};

// A name that fits, its end left out where it does not.
export const clip = (name, wide) => {
  if (room([name]) <= wide) return name;
  let short = name;
  while (short.length > 3 && room([`${short}…`]) > wide) short = short.slice(0, -1);
  return `${short}…`;
};

// Labels want to stand at `wanted`; they are pushed apart and kept between top and bottom.
export function apart(wanted, gap, top, bottom) {
  const order = d3.range(wanted.length).sort((a, b) => wanted[a] - wanted[b]);
  const place = order.map((i) => wanted[i]);
  for (let pass = 0; pass < 200; pass++) {
    let moved = 0;
    for (let i = 1; i < place.length; i++) {
      const close = gap - (place[i] - place[i - 1]);
      if (close > 0.01) {
        place[i - 1] -= close / 2;
        place[i] += close / 2;
        moved = 1;
      }
    }
    if (place.length) {
      const over = place[place.length - 1] - bottom;
      if (over > 0) place[place.length - 1] = bottom;
      if (place[0] < top) place[0] = top;
    }
    if (!moved) break;
  }
  const out = [];
  order.forEach((i, rank) => (out[i] = place[rank]));
  return out;
}

// Names at the right (or left) edge, each with a thin line to where it belongs.
export function labels(svg, ends, edge, size, side = 1, wide = 400) {
  const gap = Math.min(15, (size.bottom - size.top) / Math.max(1, ends.length - 1));
  const places = apart(ends.map((e) => e.y), gap, size.top, size.bottom);
  const g = d3.select(svg).append("g").attr("class", "labels").attr("text-anchor", "start").attr("font-size", gap < 12 ? Math.max(8, gap - 1) : 12);
  ends.forEach((end, i) => {
    g.append("path")
      .attr("d", `M${end.x + 3 * side},${end.y}L${edge},${end.y}L${edge + 8 * side},${places[i]}`)
      .attr("fill", "none")
      .attr("stroke", end.color)
      .attr("stroke-opacity", 0.35);
    g.append("text")
      .attr("x", edge + 11 * side)
      .attr("y", places[i])
      .attr("dy", "0.35em")
      .attr("text-anchor", side > 0 ? "start" : "end")
      .attr("fill", end.color)
      .text(clip(end.name, wide))
      .append("title")
      .text(end.name);
  });
}

// Names right beside their points, moved up or down where two would lie on each other.
export function beside(svg, points, edge) {
  const g = d3.select(svg).append("g").attr("class", "labels"), taken = points.map((p) => [p.x - 5, p.y - 5, p.x + 5, p.y + 5]);
  for (const p of points.slice().sort((a, b) => b.y - a.y)) {
    const name = clip(p.name, edge * 0.42), wide = room([name]), flip = p.x + 12 + wide > edge;
    const box = (at) => (flip ? [p.x - 9 - wide, at - 7, p.x - 9, at + 7] : [p.x + 9, at - 7, p.x + 9 + wide, at + 7]);
    const tries = d3.range(16).map((k) => p.y - 7 + (k % 2 ? 1 : -1) * 7 * Math.ceil(k / 2));
    const place = tries.find((at) => !taken.some((other) => hits(other, box(at)))) ?? p.y;
    taken.push(box(place));
    g.append("text").attr("x", flip ? p.x - 9 : p.x + 9).attr("y", place).attr("dy", "0.35em").attr("fill", p.color)
      .attr("text-anchor", flip ? "end" : "start").attr("stroke", "var(--paper)").attr("stroke-width", 3).attr("paint-order", "stroke").text(name).append("title").text(p.name);
  }
}
const hits = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

export const base = (width, height, more) => ({
  width,
  height,
  marginTop: 26,
  marginBottom: 38,
  style: {background: "none", color: "currentColor", fontFamily: FONT, fontSize: "12px", overflow: "visible"},
  ...more,
});

// A legend inside the drawing, so that a saved figure has it.
export function legend(plot, entries, width, height) {
  const rows = [[]];
  let used = 56;
  for (const entry of entries) {
    entry.short = clip(entry.name, width - 90);
    const wide = room([entry.short]) + 30;
    if (used + wide > width - 8 && rows[rows.length - 1].length) {
      rows.push([]);
      used = 56;
    }
    rows[rows.length - 1].push({...entry, x: used});
    used += wide;
  }
  const tall = height + rows.length * 20;
  plot.setAttribute("viewBox", `0 0 ${width} ${tall}`);
  plot.setAttribute("height", tall);
  const g = d3.select(plot).append("g").attr("class", "labels").attr("text-anchor", "start");
  rows.forEach((row, i) =>
    row.forEach((entry) => {
      const y = height + 10 + i * 20;
      g.append("rect").attr("x", entry.x).attr("y", y - 5).attr("width", 10).attr("height", 10).attr("rx", 2)
        .attr("fill", color(entry.style)).attr("fill-opacity", entry.style < 0 ? 0.5 : 0.88);
      g.append("text").attr("x", entry.x + 15).attr("y", y).attr("dy", "0.35em").attr("fill", "currentColor").text(entry.short);
    })
  );
  return plot;
}

