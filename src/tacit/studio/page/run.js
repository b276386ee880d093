import {frame} from "/static/figures/draw.js";
import {copy} from "/static/figures/table.js";
import {allowed, ask, budget, bytes, duration, element, failed, figure4, path, tiles} from "./common.js";

export default async function (place, name) {
  const head = element("div", {className: "title"}), said = element("div"), numbers = element("div"), results = element("div"), bar = element("div", {className: "bar"}, element("i"));
  const figures = element("div", {className: "figures"}), about = element("div");
  const drawn = new Map();
  let before = "";

  const act = (label, what, kind = "") => element("button", {type: "button", className: kind, disabled: !allowed(), title: allowed() ? "" : "needs the address with the token", onclick: async (event) => {
    event.target.disabled = true;
    try {
      await ask(`/api/${what}/${path(name)}`, {method: "POST"});
      said.replaceChildren();
    } catch (error) {
      said.replaceChildren(failed(error));
      event.target.disabled = false;
    }
  }}, label);

  function fill(run) {
    if (before !== run.state) {
      const links = run.people ? [["People", "people"], ...(["tally", "ease", "gfcf"].includes(run.method) ? [["Try it", "try"]] : [])] : [];
      head.replaceChildren(element("h1", {}, run.id), element("span", {className: `state ${run.state}`, dataset: {state: run.state}}, run.state),
        element("div", {className: "push"}, ...links.map(([title, page]) => element("a", {className: "button", href: `#/${page}/${path(name)}`}, title)),
          run.state === "running" ? act("Stop", "stop", "danger") : run.state === "stopped" ? act("Resume", "resume", "main") : null));
      before = run.state;
    }
    numbers.replaceChildren(tiles([
      ["round", run.planned && run.state !== "finished" ? `${run.round}` : `${run.round}`, run.planned ? `of ${run.planned}` : ""],
      [`best validation ${run.select}`, figure4(run.best_valid), run.best_round ? `round ${run.best_round}` : ""],
      run.state === "running" ? ["time left", run.left == null ? "not known" : duration(run.left)] : ["time", duration(run.seconds)],
      ["uploaded", bytes(run.bytes_up), run.clients ? `${run.clients.toLocaleString("en")} ${run.clients === 1 ? "client" : "clients"}` : ""], ["downloaded", bytes(run.bytes_down)], ["ε", run.epsilon == null ? "–" : budget(run.epsilon), run.epsilon == null ? "none promised" : ""],
    ]));
    bar.hidden = run.state !== "running" || !run.planned;
    bar.firstChild.style.width = `${Math.min(100, (100 * run.round) / (run.planned || 1))}%`;
    results.replaceChildren(...(run.state === "finished" ? [element("h2", {}, "Test, at the best round"),
      tiles(run.test.map((t) => [t.metric + (t.kind ? `, ${t.kind}` : ""), figure4(t.value)]))] : []));
    for (const spec of run.figures) {
      if (!drawn.has(spec.name)) drawn.set(spec.name, figures.appendChild(frame(spec)));
      else drawn.get(spec.name).show(spec);
    }
    if (!about.childElementCount) {
      const pairs = (values) => element("dl", {className: "pairs"}, Object.entries(values).map(([key, value]) => element("div", {}, element("dt", {}, key), element("dd", {}, Array.isArray(value) ? value.join(", ") : String(value)))));
      about.append(element("h2", {}, "To repeat this"), element("div", {className: "card"},
        element("div", {className: "command"}, element("code", {}, run.command), element("button", {type: "button", className: "quiet", onclick: (e) => copy(run.command, e.target)}, "copy")),
        pairs(run.settings), pairs({...run.versions, folder: run.folder})));
    }
  }
  fill(await ask(`/api/run/${path(name)}`));
  place.append(head, said, bar, numbers, results, element("h2", {}, "Figures"), figures, about);
  const stream = new EventSource(`/api/live/run/${path(name)}`);
  stream.onmessage = (event) => fill(JSON.parse(event.data));
  stream.addEventListener("gone", (event) => { said.replaceChildren(failed(new Error(JSON.parse(event.data)))); stream.close(); });
  return () => stream.close();
}
