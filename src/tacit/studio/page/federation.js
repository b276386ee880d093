import {ago, ask, bytes, code, duration, element, empty, failed, tiles} from "./common.js";

export default async function (place) {
  const shown = element("div", {className: "stack"});
  place.append(element("div", {className: "title"}, element("h1", {}, "Federation")), shown);
  async function fill() {
    try {
      const boards = await ask("/api/federation");
      shown.replaceChildren(...(boards.length ? boards.map(board) : [empty(element("p", {}, "No run here is one over nodes."), element("p", {}, code("tacit server METHOD --catalogue FILE --out DIR"), " begins one; its nodes appear here."))]));
    } catch (error) {
      shown.replaceChildren(failed(error));
    }
  }
  await fill();
  const timer = setInterval(fill, 2000);
  return () => clearInterval(timer);
}

function board(one) {
  const nodes = Object.entries(one.nodes).sort((a, b) => a[0].localeCompare(b[0]));
  const up = nodes.filter(([, node]) => node.up).length;
  const heads = ["node", "state", "last seen", "users", "uploaded", "downloaded", "last answer", "refused", "silent", "failed", "last reason"];
  const left = new Set(["node", "state", "last seen", "last reason"]);
  const body = nodes.map(([name, node]) => element("tr", {dataset: {node: name}}, [
    name, element("span", {className: `state ${node.up ? "up" : "down"}`}, (node.up ? "up" : "down") + (node.member ? "" : ", not in the run")), node.last_seen ? ago(node.last_seen) : "never", node.users.toLocaleString("en"),
    bytes(node.bytes_up), bytes(node.bytes_down), node.took ? duration(node.took) : "–", String(node.refused), String(node.silent), String(node.failed), node.reason || "–",
  ].map((cell, i) => element(i ? "td" : "th", {className: left.has(heads[i]) ? "left" : ""}, cell))));
  const sums = one.sums ?? {};
  return element("section", {className: "table", dataset: {board: one.id}},
    element("div", {className: "head"}, element("h3", {}, element("a", {href: `#/run/${one.id}`}, one.id), element("small", {}, one.method)), element("span", {className: `state ${one.state}`}, one.state)),
    tiles([["round", String(one.round), `of ${one.rounds}`], ["nodes up", String(up), `of ${nodes.length}`], ["quorum", one.quorum && up ? "yes" : "no", one.needs],
      sums.asked ? ["secure sum", `${sums.survived}`, `of ${sums.asked} nodes survived`] : null, one.certificate_days == null ? null : ["certificate", `${one.certificate_days}`, "days left"]]),
    element("div", {className: "scroll"}, element("table", {}, element("thead", {}, element("tr", {}, heads.map((h) => element("th", {scope: "col", className: left.has(h) ? "left" : ""}, h)))), element("tbody", {}, body))),
    Object.entries(one.rejected ?? {}).map(([address, times]) => element("p", {className: "remark"}, `Rejected: ${address}, ${times} requests without a known key.`)));
}
