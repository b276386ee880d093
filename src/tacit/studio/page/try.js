import {ask, bytes, chooser, element, empty, failed, path} from "./common.js";
import {decode, rank} from "./small.js";

export default async function (place, name) {
  const {runs} = await ask("/api/runs");
  const fit = runs.filter((run) => run.people && ["tally", "ease", "gfcf"].includes(run.method));
  place.append(element("div", {className: "title"}, element("h1", {}, "Try it")));
  if (!fit.length) return void place.append(empty(element("p", {}, "A page can rank with finished runs of tally, ease and gfcf. There is none yet.")));
  const chosen = fit.find((run) => run.id === name) ?? fit[0];
  const wait = element("p", {className: "remark"}, "Loading the catalogue and the model…");
  place.append(element("div", {className: "row"}, chooser(fit, chosen.id, (id) => (location.hash = `#/try/${path(id)}`))), wait);
  let items, blob, model;
  try {
    [items, blob] = await Promise.all([ask(`/api/try/${path(chosen.id)}`), ask(`/api/model/${path(chosen.id)}`, {raw: true})]);
    model = await decode(blob);
  } catch (error) {
    return void wait.replaceWith(failed(error));
  }
  const picked = [], sent = element("b", {dataset: {requests: "0"}}, "no request");
  let requests = 0;
  const watch = new PerformanceObserver((list) => {
    requests += list.getEntries().length;
    sent.textContent = requests ? `${requests} requests` : "no request";
    sent.dataset.requests = requests;
  });
  watch.observe({entryTypes: ["resource"]});

  const promise = element("p", {className: "promise"}, "What you pick stays in this page: the list is computed here, from a model of ", element("b", {}, bytes(blob.byteLength)),
    " that is the same for everyone. Since it was loaded, this page has made ", sent, ".");
  const found = element("ul", {className: "plain tall"}), chips = element("div", {className: "picked"}), list = element("ol", {className: "plain recs"}), took = element("p", {className: "remark"});
  const search = element("input", {type: "search", placeholder: "Find a title…", "aria-label": "Find a title", oninput: () => look()});
  search.style.width = "100%";
  const lower = items.titles.map((title) => title.toLowerCase());
  const famous = items.known.map((n, i) => [n, i]).sort((a, b) => b[0] - a[0]).map(([, i]) => i);

  function look() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = famous.filter((i) => !picked.includes(i) && words.every((w) => lower[i].includes(w))).slice(0, 30);
    found.replaceChildren(...hits.map((i) => element("li", {}, element("button", {type: "button", className: "linkish", onclick: () => { picked.push(i); search.value = ""; change(); }}, items.titles[i]))));
    if (!hits.length) found.replaceChildren(element("li", {className: "remark"}, "No title has all of these words."));
  }
  function change() {
    look();
    chips.replaceChildren(...(picked.length ? picked.map((i, at) => element("button", {type: "button", className: "chip", title: "take it away", onclick: () => { picked.splice(at, 1); change(); }}, `${items.titles[i]} ×`)) : [element("small", {}, "Nothing yet: pick a few titles on the left, the oldest first.")]));
    const began = performance.now(), lines = picked.length ? rank(model, picked, 10) : [];
    took.textContent = picked.length ? `Ranked ${items.titles.length.toLocaleString("en")} items in ${(performance.now() - began).toFixed(1)} ms.` : "";
    list.replaceChildren(...lines.map((line) => element("li", {dataset: {item: items.ids[line.item]}}, element("span", {}, items.titles[line.item]), element("span", {className: "score"}, line.score.toFixed(3)),
      line.why.length ? element("span", {className: "why"}, "from ", line.why.map(([i, share]) => element("span", {}, element("b", {}, items.titles[i]), ` +${share.toFixed(2)}`))) : null)));
  }
  wait.replaceWith(promise, element("div", {className: "two"}, element("div", {className: "card"}, search, found),
    element("div", {className: "card"}, element("h3", {}, "Picked"), chips, element("h3", {}, "You might like"), list, took)));
  change();
  return () => watch.disconnect();
}
