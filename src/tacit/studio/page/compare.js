import {frame} from "/static/figures/draw.js";
import {section} from "/static/figures/table.js";
import {ask, element, empty} from "./common.js";

export default async function (place, _, query) {
  const chosen = query.getAll("run");
  const {runs} = await ask("/api/runs");
  const grounds = new Map();
  for (const run of runs.filter((r) => r.state !== "stopped" || r.round)) {
    for (const key of [`${run.data} · ${run.protocol}`, `${run.data}, all protocols`]) grounds.set(key, [...(grounds.get(key) ?? []), run.id]);
  }
  const single = (key) => key.endsWith("all protocols") && new Set(runs.filter((r) => `${r.data}, all protocols` === key).map((r) => r.protocol)).size < 2;
  const address = (ids) => "#/compare?" + ids.map((id) => `run=${encodeURIComponent(id)}`).join("&");
  const same = (ids) => ids.length === chosen.length && ids.every((id) => chosen.includes(id));
  const quick = element("div", {className: "chips row"}, [...grounds].filter(([key, ids]) => ids.length > 1 && !single(key)).map(([key, ids]) =>
    element("a", {className: "button chip", href: address(ids), "aria-pressed": String(same(ids))}, `${key} (${ids.length})`)));
  place.append(element("div", {className: "title"}, element("h1", {}, "Compare"), chosen.length ? element("small", {}, `${chosen.length} runs`) : null), quick);
  if (!chosen.length) {
    place.append(empty(element("p", {}, "Tick runs on the page ", element("a", {href: "#/runs"}, "Runs"), ", or take all of a data set above."),
      element("p", {}, "Runs of one method with several seeds become one row, with mean and deviation.")));
    return;
  }
  const found = await ask("/api/compare?" + chosen.map((id) => `run=${encodeURIComponent(id)}`).join("&"));
  place.append(...found.tables.map(section), element("div", {className: "figures"}, found.figures.map(frame)));
}
