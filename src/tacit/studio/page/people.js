import {allowed, ask, chooser, duration, element, empty, failed, path} from "./common.js";

export default async function (place, name, query) {
  const {runs, nodes} = await ask("/api/runs");
  const fit = [...runs.filter((run) => run.people), ...nodes.map((id) => ({id, node: true}))];
  place.append(element("div", {className: "title"}, element("h1", {}, "People")));
  if (!allowed()) return void place.append(empty(element("p", {}, "People's histories are shown only to who opened the address with the token that tacit studio printed.")));
  if (!fit.length) return void place.append(empty(element("p", {}, "People are shown of finished runs that have a checkpoint, and of a node's own folder. There are none yet.")));
  const chosen = fit.find((run) => run.id === name) ?? fit.find((run) => run.method === "tally") ?? fit[0];
  const go = (id, user) => (location.hash = `#/people/${path(id)}` + (user ? `?user=${encodeURIComponent(user)}` : ""));
  const user = query.get("user");
  const list = element("ul", {className: "plain tall"}), total = element("p", {className: "remark"}), shown = element("div", {className: "stack"});
  const find = element("input", {type: "search", placeholder: "User id…", "aria-label": "Find a user", oninput: () => fill(), onkeydown: (e) => e.key === "Enter" && e.target.value && go(chosen.id, e.target.value.trim())});
  find.style.width = "100%";
  place.append(element("div", {className: "row"}, chooser(fit, chosen.id, (id) => go(id), "run or node")),
    element("div", {className: "two"}, element("div", {className: "card"}, find, list, total), shown));

  let turn = 0;
  async function fill() {
    const mine = ++turn;
    try {
      const found = await ask(`/api/people/${path(chosen.id)}?find=${encodeURIComponent(find.value.trim())}`);
      if (mine !== turn) return;
      list.replaceChildren(...found.users.map((one) => element("li", {}, element("a", {className: "person", href: `#/people/${path(chosen.id)}?user=${encodeURIComponent(one.id)}`, "aria-current": one.id === user ? "true" : "false"},
        `user ${one.id}`, element("small", {}, `${one.items} items`)))));
      total.textContent = found.total == null ? "A node's users: type an id and press Enter." : `${found.users.length} of ${found.total.toLocaleString("en")} shown`;
    } catch (error) {
      list.replaceChildren(failed(error));
    }
  }
  list.replaceChildren(element("li", {className: "remark"}, "Loading the model…"));
  shown.append(user ? element("p", {className: "remark"}, "Ranking…") : empty(element("p", {}, "Choose somebody to see what the model knows and recommends, and why.")));
  fill();
  if (!user) return;
  try {
    person(shown, chosen, await ask(`/api/people/${path(chosen.id)}?user=${encodeURIComponent(user)}`), fill);
  } catch (error) {
    shown.replaceChildren(failed(error));
  }
}

const KINDS = {
  exact: "Reasons are exact: how much each item of the history adds to the score.",
  nearest: "Reasons are the nearest known items in the item table: a likeness, not a cause.",
  none: "This method gives no reasons.",
};

function person(shown, run, found, refill) {
  const recs = element("ol", {className: "plain recs"}, found.lines.map((line) => element("li", {dataset: {item: line.item}},
    element("span", {}, line.title, line.held_out ? element("span", {className: "mark"}, "  ✓ chosen next") : null), element("span", {className: "score"}, line.score.toFixed(3)),
    line.why.length ? element("span", {className: "why"}, "from ", line.why.map((r) => element("span", {}, element("b", {}, r.title), ` ${found.kind === "exact" ? "+" : ""}${r.share.toFixed(2)}`))) : null)));
  const hit = found.lines.some((line) => line.held_out);
  const ask_first = element("button", {type: "button", className: "danger", hidden: !(run.forgets || run.node), onclick: () => sure(found.user, run, shown, ask_first, refill)}, "Forget this user…");
  shown.replaceChildren(
    element("div", {className: "card"}, element("div", {className: "head"}, element("h3", {}, `For user ${found.user}`), ask_first), recs,
      element("p", {className: "remark"}, KINDS[found.kind], found.held_out.length && !hit ? ` What was really chosen next, ${found.held_out.join(", ")}, is not among the first ${found.lines.length}.` : "")),
    element("div", {className: "card"}, element("h3", {}, "History", element("small", {}, `  ${found.items} items, the newest first`)), element("ul", {className: "plain tall"}, found.history.map((one) => element("li", {}, one.title)))));
}

function sure(user, run, shown, button, refill) {
  const said = element("div");
  const box = element("div", {className: "card", role: "alertdialog", "aria-label": "Forget"}, element("h3", {}, `Forget user ${user}?`),
    element("p", {}, run.node ? "It is removed from this node's folder and from its next uploads." : "The run will be as if the user had never been there. This cannot be undone."),
    element("div", {className: "row"}, element("button", {type: "button", className: "danger", onclick: async (event) => {
      event.target.disabled = true;
      try {
        result(shown, await ask(`/api/forget/${path(run.id)}?user=${encodeURIComponent(user)}`, {method: "POST"}), refill);
      } catch (error) {
        said.replaceChildren(failed(error));
        event.target.disabled = false;
      }
    }}, "Forget"), element("button", {type: "button", onclick: () => { box.remove(); button.hidden = false; }}, "Keep")), said);
  button.hidden = true;
  shown.prepend(box);
}

function result(shown, done, refill) {
  refill();
  const list = (title, note, lines, others) => element("div", {}, element("h3", {}, title), element("p", {className: "remark"}, note),
    element("ol", {className: "plain recs"}, lines.map((one) => element("li", {}, element("span", {className: others.some((o) => o.title === one.title) ? "" : "moved"}, one.title), element("span", {className: "score"}, one.score.toFixed(3))))));
  shown.replaceChildren(element("div", {className: "card", dataset: {forgotten: done.user}}, element("h3", {}, `User ${done.user} is forgotten`),
    element("p", {}, `It took ${duration(done.seconds)}${done.items ? ` and changed only what ${done.items} interactions had added` : ""}. Asked for this list again, it says: ${done.refused}.`)),
    ...(done.before.length ? [element("div", {className: "card beside"}, list("Before", "the user's list", done.before, done.after), list("After", "what a stranger with the same history gets now", done.after, done.before))] : []));
}
