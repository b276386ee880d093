import {frame} from "/static/figures/draw.js";
import {section} from "/static/figures/table.js";
import {ask, code, element, empty, failed} from "./common.js";

export default async function (place, name) {
  const all = await ask("/api/papers");
  place.append(element("div", {className: "title"}, element("h1", {}, "Papers")), element("p", {className: "lead"}, "Published figures beside measured ones. The verdict is on what was measured under the paper's own protocol, reproduced within a tenth of what is published; strict is what a method is worth."));
  if (!all.length) return void place.append(empty(element("p", {}, "There are no experiment files here."), element("p", {}, code("tacit studio --experiments DIR"), " names the folder that has them.")));
  const begun = all.filter((one) => one.finished), rest = all.filter((one) => !one.finished);
  const chosen = name || begun[0]?.name;
  const option = (one) => element("option", {value: one.name, selected: one.name === chosen}, one.title + (one.finished ? ` · ${one.finished} runs` : ""));
  const group = (label, some) => (some.length ? element("optgroup", {label}, some.map(option)) : null);
  const select = element("select", {"aria-label": "experiment", onchange: (event) => (location.hash = `#/papers/${event.target.value}`)},
    chosen ? null : element("option", {selected: true, disabled: true}, "Choose an experiment…"), group("with runs", begun), group("not begun", rest));
  const shown = element("div", {className: "stack"});
  place.append(element("div", {className: "row"}, select), shown);
  if (!chosen) return void shown.append(empty(element("p", {}, "Nothing has been run yet."), element("p", {}, "Choose an experiment to see the command that runs it.")));
  shown.append(element("p", {className: "remark"}, "Reading its runs…"));
  try {
    const paper = await ask(`/api/papers/${encodeURIComponent(chosen)}`);
    shown.replaceChildren(element("h2", {}, paper.title), element("p", {className: "remark"}, `${paper.done} of ${paper.planned} runs finished. `, code(paper.command), paper.done < paper.planned ? " runs or resumes the rest." : " repeats it."),
      ...paper.tables.map(section), element("div", {className: "figures"}, paper.figures.map(frame)));
    shown.firstChild.style.marginTop = 0;
  } catch (error) {
    shown.replaceChildren(failed(error));
  }
}
