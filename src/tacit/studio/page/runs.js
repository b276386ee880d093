import {allowed, ask, budget, code, duration, element, empty, failed, figure4} from "./common.js";

const STATES = ["all", "running", "finished", "stopped"];
const MOST = 300;

export default async function (place) {
  const {runs, roots} = await ask("/api/runs");
  let all = runs, state = "all", text = "", more = false;
  const picked = new Set();
  const body = element("tbody"), count = element("p", {className: "remark"});
  const compare = element("button", {type: "button", className: "main", hidden: true, onclick: () => (location.hash = "#/compare?" + [...picked].map((id) => `run=${encodeURIComponent(id)}`).join("&"))});
  const chips = STATES.map((name) => element("button", {type: "button", className: "chip", onclick: () => { state = name; fill(); }}, name));
  const search = element("input", {type: "search", placeholder: "Filter by name, method, data…", "aria-label": "Filter runs", oninput: (e) => { text = e.target.value.toLowerCase(); fill(); }});
  const heads = [["", "tick"], ["run", "left name"], ["state", "left"], ["round"], ["test", ""], ["ε"], ["time"], ["started", "left"]];
  const table = element("section", {className: "table list"}, element("div", {className: "scroll"}, element("table", {},
    element("thead", {}, element("tr", {}, heads.map(([name, kind]) => element("th", {className: kind ?? "", scope: "col"}, name)))), body)), count);
  const start = element("div", {hidden: true, className: "card"});
  const toggle = element("button", {type: "button", onclick: () => { start.hidden = !start.hidden; if (!start.hidden && !start.childElementCount) form(start); }}, "New run");
  const nothing = empty(element("p", {}, "There are no runs in ", code(roots.join(", ")), " yet."), element("p", {}, code("tacit run fedmf --data demo"), " makes one in a few seconds."));

  function line(run) {
    const tick = element("input", {type: "checkbox", checked: picked.has(run.id), "aria-label": `Compare ${run.id}`, onchange: (e) => { e.target.checked ? picked.add(run.id) : picked.delete(run.id); chosen(); }});
    const value = run.value != null ? [figure4(run.value), element("small", {}, ` ${run.metric}`)] : run.valid != null ? [figure4(run.valid), element("small", {}, " validation")] : ["–"];
    return element("tr", {dataset: {run: run.id}}, element("td", {className: "tick"}, tick),
      element("td", {className: "left name"}, element("a", {href: `#/run/${run.id.split("/").map(encodeURIComponent).join("/")}`, title: run.id}, run.id)),
      element("td", {className: "left"}, element("span", {className: `state ${run.state}`}, run.state)),
      element("td", {}, run.planned && run.state !== "finished" ? `${run.round} of ${run.planned}` : String(run.round)),
      element("td", {}, ...value), element("td", {}, run.epsilon == null ? "–" : budget(run.epsilon)), element("td", {}, duration(run.seconds)),
      element("td", {className: "left"}, run.started.slice(0, 16).replace("T", " ")));
  }
  function chosen() {
    compare.hidden = picked.size === 0;
    compare.textContent = `Compare ${picked.size} ${picked.size === 1 ? "run" : "runs"}`;
  }
  function fill() {
    chips.forEach((chip, i) => chip.setAttribute("aria-pressed", STATES[i] === state));
    const words = text.split(/\s+/).filter(Boolean);
    const shown = all.filter((run) => (state === "all" || run.state === state) && words.every((w) => `${run.id} ${run.method} ${run.data} ${run.protocol}`.toLowerCase().includes(w)));
    body.replaceChildren(...(more ? shown : shown.slice(0, MOST)).map(line));
    const rest = more ? 0 : shown.length - MOST;
    count.replaceChildren(`${shown.length.toLocaleString("en")} of ${all.length.toLocaleString("en")} runs`, rest > 0 ? element("button", {type: "button", className: "quiet", onclick: () => { more = true; fill(); }}, `show ${rest} more`) : "");
    table.hidden = !all.length;
    nothing.hidden = all.length > 0;
  }
  place.append(element("div", {className: "title"}, element("h1", {}, "Runs"), element("div", {className: "push"}, compare, toggle)),
    start, element("div", {className: "row"}, search, element("div", {className: "chips", role: "group", "aria-label": "State"}, chips)), table, nothing);
  start.style.marginBottom = "1.1rem";
  fill();
  const stream = new EventSource("/api/live/runs");
  stream.onmessage = (event) => { all = JSON.parse(event.data); fill(); };
  return () => stream.close();
}

async function form(card) {
  if (!allowed()) return card.append(failed(new Error("to start runs, open the address with the token that tacit studio printed")));
  const choices = await ask("/api/choices");
  const list = (name, values) => element("datalist", {id: name}, values.map((value) => element("option", {value})));
  const field = (label, input) => element("label", {className: "field"}, label, input);
  const input = (name, value, extra = {}) => element("input", {name, value, autocomplete: "off", ...extra});
  const said = element("div");
  const go = element("button", {className: "main"}, "Start");
  const made = element("form", {className: "grid", onsubmit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    const values = Object.fromEntries(new FormData(made));
    try {
      const body = {...values, rounds: values.rounds ? +values.rounds : null, seed: +values.seed || 0};
      const {id} = await ask("/api/start", {method: "POST", body});
      location.hash = `#/run/${id.split("/").map(encodeURIComponent).join("/")}`;
    } catch (error) {
      said.replaceChildren(failed(error));
      go.disabled = false;
    }
  }},
    field("method", input("method", "tally", {required: true, "list": undefined})), field("data", input("data", "ml-100k", {required: true})),
    field("protocol", element("select", {name: "protocol"}, choices.protocols.map((p) => element("option", {value: p}, p)))),
    field("rounds", input("rounds", "", {type: "number", min: 1, placeholder: "the method's own"})), field("seed", input("seed", "0", {type: "number"})),
    field("settings", input("settings", "", {placeholder: "dim=32 lr=0.1"})), field("folder", input("folder", "", {placeholder: "chosen for you"})), go);
  made.elements.method.setAttribute("list", "methods");
  made.elements.data.setAttribute("list", "data");
  card.replaceChildren(element("h3", {}, "New run"), made, list("methods", choices.methods), list("data", choices.data), said);
}
