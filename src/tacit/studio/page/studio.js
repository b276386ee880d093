// The studio: an address after # for every page, and one module each.
import {failed, element} from "./common.js";

const PAGES = {
  runs: ["Runs", () => import("./runs.js")],
  compare: ["Compare", () => import("./compare.js")],
  papers: ["Papers", () => import("./papers.js")],
  people: ["People", () => import("./people.js")],
  try: ["Try it", () => import("./try.js")],
  privacy: ["Privacy", () => import("./privacy.js")],
  federation: ["Federation", () => import("./federation.js")],
  run: [null, () => import("./run.js")],
};
const page = document.getElementById("page"), nav = document.getElementById("nav");
let leave = null, turn = 0;

nav.append(...Object.entries(PAGES).filter(([, [title]]) => title).map(([name, [title]]) =>
  element("a", {href: `#/${name}`, dataset: {page: name}}, title)));

async function show() {
  const [where, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = (where || "runs").split("/").map(decodeURIComponent);
  const known = PAGES[name] ?? PAGES.runs, mine = ++turn;
  for (const link of nav.children) {
    if (link.dataset.page === (name === "run" ? "runs" : name)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave?.();
  leave = null;
  document.title = `${known[0] ?? rest.join("/")} · tacit studio`;
  const place = element("div", {dataset: {page: name}});
  try {
    const module = await known[1]();
    if (mine !== turn) return;
    page.replaceChildren(place);
    const left = await module.default(place, rest.join("/"), new URLSearchParams(query ?? ""));
    if (mine !== turn) return left?.();
    leave = left;
  } catch (error) {
    place.append(failed(error));
    if (mine === turn) page.replaceChildren(place);
  }
}
addEventListener("hashchange", show);
addEventListener("pagehide", () => leave?.());
show();
