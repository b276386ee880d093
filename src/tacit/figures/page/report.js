// The report: everything it shows is in the page itself.
const contents = JSON.parse(document.getElementById("contents").textContent);
const page = document.getElementById("page");

page.append(
  element("h1", {}, contents.title),
  element("p", {className: "lead"}, contents.lead),
  contents.tables.length ? element("h2", {id: "results"}, "Results") : "",
  ...contents.tables.map(section),
  contents.figures.length ? element("h2", {id: "figures"}, "Figures") : "",
  element("div", {className: "figures"}, contents.figures.map(frame)),
  contents.runs.length ? element("h2", {id: "repeat"}, "To repeat this") : "",
  ...(contents.runs.length ? [element("div", {className: "card"}, contents.runs.map(repeat))] : []),
  element("p", {className: "remark"}, contents.made),
);
document.documentElement.dataset.ready = contents.figures.length;

function repeat(run) {
  const pairs = (values) => element("dl", {className: "pairs"}, Object.entries(values).map(([key, value]) =>
    element("div", {}, element("dt", {}, key), element("dd", {}, Array.isArray(value) ? value.join(", ") : String(value)))));
  return element("details", {},
    element("summary", {}, run.name, element("small", {}, [run.where, run.state, run.started].filter(Boolean).join(" · "))),
    run.commands.map((command) => element("div", {className: "command"}, element("code", {}, command),
      element("button", {type: "button", className: "quiet", onclick: (event) => copy(command, event.target)}, "copy"))),
    pairs(run.settings),
    pairs({...run.versions, data: run.fingerprint}));
}
