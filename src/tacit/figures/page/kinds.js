// The kinds of figures: each takes a specification and a width and gives an SVG element. Plot and d3 are globals.
import {apart, base, beside, bytes, clip, color, dash, fixed, labels, legend, number, room, shown, symbol} from "./parts.js";

function lines(spec, width) {
  const named = spec.series.filter((s) => s.name);
  const names = [...(named.length > 1 ? named : []).map((s) => s.name), ...spec.rules.map((r) => r.label)];
  const right = names.length ? Math.min(room(names) + 18, width * 0.34) : 12;
  const points = spec.series.flatMap((s) => s.points.map(([x, y, dev]) => ({x, y, dev, s})));
  const whole = spec.x.label === "round";
  const [low, high] = d3.extent(points, (p) => p.x);
  const plot = Plot.plot(
    base(width, spec.height ?? 320, {
      marginLeft: 56,
      marginRight: right + 10,
      x: {
        type: spec.x.scale ?? "linear",
        constant: spec.x.constant,
        label: spec.x.label,
        labelAnchor: "center",
        labelArrow: "none",
        ticks: spec.x.ticks ?? (whole ? Math.min(8, high - low) : 8),
        tickFormat: whole ? (d) => (Number.isInteger(d) ? d.toLocaleString("en") : "") : number,
      },
      y: {
        label: spec.y.label,
        labelArrow: "none",
        grid: true,
        nice: true,
        zero: spec.y.zero ?? false,
        domain: spec.y.domain,
        tickFormat: spec.y.format === "bytes" ? bytes : fixed(d3.extent(points, (p) => p.y)),
        ticks: 6,
      },
      color: {type: "identity"},
      marks: [
        Plot.ruleY(spec.rules, {y: "y", stroke: "var(--grey)", strokeDasharray: "3 3"}),
        Plot.areaY(points.filter((p) => p.dev != null), {
          x: "x", y1: (p) => p.y - p.dev, y2: (p) => p.y + p.dev, z: (p) => p.s.name,
          fill: (p) => color(p.s.style), fillOpacity: 0.14,
        }),
        ...spec.series.map((s) =>
          Plot.line(s.points, {
            x: (p) => p[0], y: (p) => p[1], stroke: color(s.style), strokeWidth: 1.8,
            strokeDasharray: s.published ? "2 3" : dash(s.style), marker: spec.dots ? "dot" : undefined,
          })
        ),
        Plot.dot(spec.series.filter((s) => s.best), {
          x: (s) => s.best[0], y: (s) => s.best[1], r: 5, stroke: (s) => color(s.style), strokeWidth: 2,
          fill: "var(--paper)",
        }),
        Plot.tip(points, Plot.pointer({
          x: "x", y: "y", title: (p) => `${p.s.name || spec.y.label}\n${spec.x.label} ${number(p.x)}: ${shown(spec.y)(p.y)}`
            + (p.dev == null ? "" : ` ± ${number(p.dev)}`), fill: "var(--paper)", stroke: "var(--line)",
        })),
      ],
    })
  );
  const x = plot.scale("x"), y = plot.scale("y");
  const ends = [
    ...(named.length > 1 ? named : []).map((s) => {
      const last = s.points[s.points.length - 1];
      return {name: s.name, x: x.apply(last[0]), y: y.apply(last[1]), color: color(s.style)};
    }),
    ...spec.rules.map((r) => ({name: r.label, x: width - right - 12, y: y.apply(r.y), color: "var(--grey)"})),
  ];
  const edge = width - right - 10, early = (e) => e.x < edge - 0.12 * width;
  beside(plot, ends.filter(early), edge);
  labels(plot, ends.filter((e) => !early(e)), edge, {top: 26, bottom: (spec.height ?? 320) - 40}, 1, right - 8);
  return plot;
}

function slope(spec, width) {
  const names = spec.series.map((s) => s.name);
  const side = Math.min(room([...names.map((n) => `0.00  ${n}`), "0.00  chance"]) + 24, width * 0.36);
  width = Math.min(width, 2 * side + 460);
  const height = Math.max(380, 60 + 17 * spec.series.length);
  const ends = spec.ends;
  const points = spec.series.flatMap((s) => [
    {s, x: ends[0], y: s.left[0], dev: s.left[1]},
    {s, x: ends[1], y: s.right[0], dev: s.right[1]},
  ]);
  const plot = Plot.plot(
    base(width, height, {
      marginLeft: side,
      marginRight: side,
      x: {type: "point", domain: ends, label: null, padding: 0, axis: null},
      y: {axis: null, domain: spec.y.domain},
      color: {type: "identity"},
      marks: [
        Plot.gridY({ticks: 5, stroke: "currentColor", strokeOpacity: 0.08}),
        Plot.ruleX(ends, {stroke: "currentColor", strokeOpacity: 0.35}),
        Plot.text(ends, {x: (d) => d, text: (d) => d, frameAnchor: "top", dy: -18, fill: "currentColor", fontWeight: 600, fontSize: 13}),
        Plot.ruleY(spec.rules, {y: "y", stroke: "var(--grey)", strokeDasharray: "3 3"}),
        ...spec.series.map((s) =>
          Plot.line([{x: ends[0], y: s.left[0]}, {x: ends[1], y: s.right[0]}], {
            x: "x", y: "y", stroke: color(s.style), strokeWidth: s.name === "oracle" ? 2.6 : 1.8,
            strokeDasharray: dash(s.style),
          })
        ),
        Plot.ruleX(points.filter((p) => p.dev != null), {
          x: "x", y1: (p) => p.y - p.dev, y2: (p) => p.y + p.dev, stroke: (p) => color(p.s.style), strokeWidth: 3,
          strokeOpacity: 0.35,
        }),
        Plot.dot(points, {x: "x", y: "y", r: 3.6, fill: (p) => color(p.s.style)}),
        Plot.tip(points, Plot.pointer({
          x: "x", y: "y", title: (p) => `${p.s.name}\n${p.x}: ${number(p.y)}` + (p.dev == null ? "" : ` ± ${number(p.dev)}`),
          fill: "var(--paper)", stroke: "var(--line)",
        })),
      ],
    })
  );
  const x = plot.scale("x"), y = plot.scale("y"), size = {top: 26, bottom: height - 36};
  const at = (key, place) =>
    spec.series.map((s) => ({
      name: key === "left" ? `${s.name}  ${s.left[0].toFixed(2)}` : `${s.right[0].toFixed(2)}  ${s.name}`,
      x: x.apply(place), y: y.apply(s[key][0]), color: color(s.style),
    }));
  labels(plot, at("left", ends[0]), x.apply(ends[0]) - 8, size, -1, side - 24);
  const rules = spec.rules.map((r) => ({name: `${r.y.toFixed(2)}  ${r.label}`, x: x.apply(ends[1]), y: y.apply(r.y), color: "var(--grey)"}));
  labels(plot, [...at("right", ends[1]), ...rules], x.apply(ends[1]) + 8, size, 1, side - 24);
  return plot;
}

// Ticks of a logarithmic axis: powers of ten, and between them where there are few.
function round([low, high]) {
  const some = (steps) => d3.range(-12, 16).flatMap((p) => steps.map((s) => s * 10 ** p)).filter((t) => t >= low && t <= high);
  return [[1], [1, 3], [1, 2, 5]].map(some).find((ticks) => ticks.length > 2) ?? some([1, 2, 3, 5, 7]);
}

function dots(spec, width) {
  const laned = (p) => p.lane != null;
  const lane = width < 480 ? 72 : 96;
  const height = 340;
  const extra = spec.lanes.length * lane;
  const inside = spec.points.filter((p) => !laned(p));
  const right = 20 + extra;
  const far = inside.length ? d3.extent(inside, (p) => p.x) : [1, 10];
  const domain = spec.x.scale === "log" ? [far[0] / 1.8, far[1] * 3] : far;
  const plot = Plot.plot(
    base(width, height, {
      marginLeft: 56,
      marginRight: right,
      x: {
        type: spec.x.scale ?? "linear", domain, label: spec.x.label, labelAnchor: "center", labelArrow: "none", grid: true,
        tickFormat: shown(spec.x), ticks: spec.x.scale === "log" ? round(domain) : 6,
      },
      y: {label: spec.y.label, labelArrow: "none", grid: true, nice: true, zero: true, ticks: 6, domain: [0, d3.max(spec.points, (p) => p.y + (p.dev ?? 0))]},
      color: {type: "identity"},
      marks: [
        Plot.line(spec.frontier, {
          x: (p) => p[0], y: (p) => p[1], stroke: "currentColor", strokeOpacity: 0.45, strokeDasharray: "5 4", curve: "step-after",
        }),
        Plot.ruleX(inside.filter((p) => p.dev != null), {
          x: "x", y1: (p) => p.y - p.dev, y2: (p) => p.y + p.dev, stroke: (p) => color(p.style), strokeOpacity: 0.5,
        }),
        Plot.dot(inside, {
          x: "x", y: "y", r: 5, fill: (p) => color(p.style), symbol: (p) => symbol(p.style),
        }),
        Plot.tip(inside, Plot.pointer({
          x: "x", y: "y", title: (p) => `${p.name}\n${spec.x.label}: ${shown(spec.x)(p.x)}\n${spec.y.label}: ${number(p.y)}`
            + (p.dev == null ? "" : ` ± ${number(p.dev)}`), fill: "var(--paper)", stroke: "var(--line)",
        })),
      ],
      symbol: {type: "identity"},
    })
  );
  const x = plot.scale("x"), y = plot.scale("y"), g = d3.select(plot).append("g").attr("class", "labels").attr("text-anchor", "start");
  const edge = width - right;
  spec.lanes.forEach((name, i) => {
    const left = edge + 12 + i * lane;
    g.append("rect").attr("x", left).attr("y", 26).attr("width", lane - 10).attr("height", height - 64)
      .attr("fill", "currentColor").attr("fill-opacity", 0.045).attr("rx", 4);
    g.append("text").attr("x", left + (lane - 10) / 2).attr("y", height - 20).attr("text-anchor", "middle")
      .attr("fill", "currentColor").attr("font-size", name.length > 2 ? 11 : 15).text(name);
    const here = spec.points.filter((p) => p.lane === name);
    const places = apart(here.map((p) => y.apply(p.y)), 14, 30, height - 44);
    here.forEach((p, k) => {
      g.append("path").attr("d", d3.symbol(d3.symbolCircle, 62)()).attr("fill", color(p.style))
        .attr("transform", `translate(${left + 10},${y.apply(p.y)})`);
      g.append("text").attr("x", left + 19).attr("y", places[k]).attr("dy", "0.35em").attr("fill", color(p.style))
        .attr("font-size", 11).text(clip(p.name, lane - 26)).append("title").text(p.name);
    });
  });
  beside(plot, inside.map((p) => ({name: p.name, x: x.apply(p.x), y: y.apply(p.y), color: color(p.style)})), edge);
  return plot;
}

function bars(spec, width) {
  const series = [...new Set(spec.cells.map((c) => c.series))];
  const style = new Map(spec.cells.map((c) => [c.series, c.style]));
  const narrow = width < 560;
  const label = {x: (c) => c.series, y: (c) => c.y};
  const plot = Plot.plot(
    base(width, 330, {
      marginLeft: 56,
      marginBottom: 44,
      marginRight: 12,
      fx: {domain: spec.groups, label: null, padding: 0.12, axis: "bottom", tickFormat: (d) => (narrow ? d.replace(" interactions", "") : d)},
      x: {domain: series, axis: null, padding: 0.14},
      y: {label: spec.y.label, labelArrow: "none", grid: true, nice: true, tickFormat: fixed([0, d3.max(spec.cells, (c) => c.y)])},
      color: {type: "identity"},
      marks: [
        Plot.barY(spec.cells, {fx: "group", ...label, fill: (c) => color(c.style), fillOpacity: (c) => (c.style < 0 ? 0.5 : 0.88)}),
        Plot.ruleX(spec.cells.filter((c) => c.dev != null), {
          fx: "group", x: "series", y1: (c) => Math.max(0, c.y - c.dev), y2: (c) => c.y + c.dev, stroke: "currentColor", strokeOpacity: 0.7,
        }),
        Plot.ruleY([0], {stroke: "currentColor", strokeOpacity: 0.5}),
        Plot.tip(spec.cells, Plot.pointer({
          fx: "group", ...label, title: (c) => `${c.series}, ${c.group}\n${number(c.y)}` + (c.dev == null ? "" : ` ± ${number(c.dev)}`),
          fill: "var(--paper)", stroke: "var(--line)",
        })),
      ],
    })
  );
  return legend(plot, series.map((name) => ({name, style: style.get(name)})), width, 330);
}

function heat(spec, width) {
  const xs = [...new Set(spec.cells.map((c) => c[0]))], ys = [...new Set(spec.cells.map((c) => c[1]))];
  const left = Math.min(room(ys) + 14, 260), needed = left + 62 * xs.length + 20;
  const [low, high] = spec.domain ?? d3.extent(spec.cells, (c) => c[2]);
  const strength = (v) => Math.max(0, Math.min(1, (v - low) / (high - low || 1)));
  const plot = Plot.plot(
    base(Math.max(width, needed), 84 + 30 * ys.length, {
      marginLeft: left,
      marginTop: 12,
      marginBottom: 46,
      x: {domain: xs, label: spec.x.label, labelAnchor: "center", labelArrow: "none"},
      y: {domain: ys, label: null, tickSize: 0, tickFormat: (d) => clip(d, left - 12)},
      color: {type: "identity"},
      marks: [
        Plot.axisX({tickSize: 0, lineWidth: Math.max(4, (Math.max(width, needed) - left) / xs.length / 13), label: null}),
        Plot.cell(spec.cells, {x: (c) => c[0], y: (c) => c[1], fill: "var(--s1)", fillOpacity: (c) => 0.05 + 0.75 * strength(c[2]), inset: 1, rx: 3}),
        Plot.text(spec.cells, {
          x: (c) => c[0], y: (c) => c[1], text: (c) => (+c[2]).toFixed(3), fill: "currentColor",
          fontWeight: 500, fontVariant: "tabular-nums",
        }),
      ],
      opacity: {type: "identity"},
    })
  );
  if (needed > width) plot.style.maxWidth = "none"; // it is moved sideways, as a table is
  return plot;
}

function pairs(spec, width) {
  const left = Math.min(room(spec.rows) + 14, width * 0.42);
  const style = (of) => spec.of.indexOf(of);
  const hollow = (p) => p.of === "published";
  const height = 60 + 24 * spec.rows.length;
  const ends = d3.rollups(spec.points, (list) => d3.extent(list, (p) => p.x), (p) => p.row);
  const dot = {x: "x", y: "row", r: 4.5};
  const plot = Plot.plot(
    base(width, height, {
      marginLeft: left,
      marginTop: 12,
      marginBottom: 40,
      x: {label: spec.x.label, labelAnchor: "center", labelArrow: "none", grid: true, nice: true, ticks: 6},
      y: {domain: spec.rows, label: null, tickSize: 0},
      color: {type: "identity"},
      symbol: {type: "identity"},
      marks: [
        Plot.ruleY(ends, {y: (e) => e[0], x1: (e) => e[1][0], x2: (e) => e[1][1], stroke: "currentColor", strokeOpacity: 0.2}),
        Plot.dot(spec.points.filter((p) => !hollow(p)), {...dot, fill: (p) => color(style(p.of)), symbol: (p) => symbol(style(p.of))}),
        Plot.dot(spec.points.filter(hollow), {...dot, stroke: color(0), strokeWidth: 1.8}),
        Plot.tip(spec.points, Plot.pointer({
          x: "x", y: "row", title: (p) => `${p.row}\n${p.title || p.of}: ${number(p.x)}`, fill: "var(--paper)", stroke: "var(--line)",
        })),
      ],
    })
  );
  return legend(plot, spec.of.map((name, i) => ({name, style: i})), width, height);
}

function histogram(spec, width) {
  return Plot.plot(
    base(width, 280, {
      marginLeft: 56,
      x: {domain: spec.bins.map((b) => b[0]), label: spec.x.label, labelAnchor: "center", labelArrow: "none", padding: 0.06, tickSize: 0},
      y: {label: spec.y.label, labelArrow: "none", grid: true},
      marks: [
        Plot.barY(spec.bins, {x: (b) => b[0], y: (b) => b[1], fill: "var(--s0)", fillOpacity: 0.85}),
        Plot.text(spec.bins, {x: (b) => b[0], y: (b) => b[1], text: (b) => b[1].toLocaleString("en"), dy: -7, fill: "currentColor"}),
        Plot.ruleY([0], {stroke: "currentColor", strokeOpacity: 0.5}),
      ],
    })
  );
}

function plane(spec, width) {
  const columns = Math.max(1, Math.min(spec.panels.length, Math.floor(width / 230)));
  const rows = Math.ceil(spec.panels.length / columns);
  const points = spec.panels.flatMap((panel, i) =>
    panel.series.flatMap((s) =>
      scaled(panel).map(([of, list]) => (of === s ? list.map(([x, y, v]) => ({x, y, v, s, fx: i % columns, fy: Math.floor(i / columns)})) : [])).flat()
    )
  );
  const ends = spec.paths ? d3.groups(points, (p) => `${p.fx} ${p.fy} ${p.s.name}`).map(([, list]) => list[list.length - 1]) : points;
  const titles = spec.panels.map((panel, i) => ({fx: i % columns, fy: Math.floor(i / columns), name: panel.name}));
  const height = 20 + rows * Math.min(260, width / columns);
  const plot = Plot.plot(
    base(width, height, {
      margin: 8, marginTop: 22, marginBottom: 8,
      fx: {axis: null, padding: 0.06}, fy: {axis: null, padding: 0.1},
      x: {axis: null, domain: [-1.08, 1.08]}, y: {axis: null, domain: [-1.08, 1.08]},
      color: {type: "identity"},
      marks: [
        Plot.frame({stroke: "var(--line)", rx: 4}),
        ...(spec.paths ? [Plot.line(points, {fx: "fx", fy: "fy", x: "x", y: "y", z: (p) => p.s.name, stroke: (p) => color(p.s.style), strokeOpacity: 0.7})] : []),
        Plot.dot(ends, {fx: "fx", fy: "fy", x: "x", y: "y", r: spec.paths ? 4 : 2.2, fill: (p) => color(p.s.style), fillOpacity: spec.paths ? 1 : 0.7}),
        Plot.text(titles, {fx: "fx", fy: "fy", text: "name", frameAnchor: "top", dy: -14, fill: "currentColor"}),
      ],
    })
  );
  const names = new Map(spec.panels.flatMap((p) => p.series.map((s) => [s.name, s.style])));
  return legend(plot, [...names].map(([name, style]) => ({name, style})), width, height);
}
// Every panel in its own square from -1 to 1: a plane by t-SNE has no unit.
function scaled(panel) {
  const all = panel.series.flatMap((s) => s.points);
  const [x0, x1] = d3.extent(all, (p) => p[0]), [y0, y1] = d3.extent(all, (p) => p[1]);
  const half = Math.max(x1 - x0, y1 - y0) / 2 || 1;
  return panel.series.map((s) => [s, s.points.map(([x, y, v]) => [(x - (x0 + x1) / 2) / half, (y - (y0 + y1) / 2) / half, v])]);
}

export const KINDS = {lines, slope, dots, bars, heat, histogram, pairs, plane};
