import {frame} from "/static/figures/draw.js";
import {ask, code, element, empty} from "./common.js";

export default async function (place) {
  const found = await ask("/api/privacy");
  place.append(element("div", {className: "title"}, element("h1", {}, "Privacy")), element("p", {className: "lead"}, "What a curious server reads from uploads, attack by attack, with and without protection; and what a stated ε costs in accuracy."));
  const shown = [...(found.audits ? [found.audits] : []), ...found.budgets];
  if (shown.length) place.append(element("div", {className: "figures"}, shown.map((spec) => { const made = frame(spec); if (spec.name === "audits") made.classList.add("wide"); return made; })));
  if (!found.audits) place.append(empty(element("p", {}, "No run here has been audited."), element("p", {}, code("tacit audit RUN --ldp kind=gaussian,clip=1,epsilon=8 --secure"), " attacks its uploads, with and without protection.")));
  place.append(...found.refused.map((line) => element("p", {className: "remark"}, `${line}.`)));
}
