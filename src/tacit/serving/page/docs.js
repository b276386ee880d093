// What can be asked, from /openapi.json, and asked right here. Nothing comes from another host.
import {element} from "/static/figures/table.js";

const page = document.getElementById("page");
const api = await (await fetch("/openapi.json")).json();
const health = await (await fetch("/health")).json();
const about = health.run ? `${health.method} on ${health.data}: ${health.users.toLocaleString("en")} users, ${health.items.toLocaleString("en")} items.` : `The node ${health.node}.`;

page.append(element("h1", {}, api.info.title), element("p", {className: "lead"}, `${api.info.description} ${about} The same as a file: `, element("a", {href: "/openapi.json"}, "openapi.json"), "."));
for (const [path, verbs] of Object.entries(api.paths)) for (const [verb, route] of Object.entries(verbs)) page.append(shown(path, verb, route));

function fields(schema) {
  const found = schema?.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
  return Object.entries(found?.properties ?? {}).map(([name, about]) => ({name, schema: about, description: about.description ?? "", required: (found.required ?? []).includes(name)}));
}
function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.filter((one) => one.type !== "null").map(kind).join(" or ");
  return schema.type === "array" ? `list of ${kind(schema.items)}` : schema.type;
}
function shown(path, verb, route) {
  const body = route.requestBody?.content["application/json"]?.schema;
  const given = (route.parameters ?? []).map((p) => ({name: p.name, schema: p.schema, description: p.in === "path" ? "in the path" : p.description ?? "", required: p.required, in: p.in}));
  const all = [...given, ...fields(body)];
  const table = all.length ? element("div", {className: "scroll"}, element("table", {}, element("tbody", {}, all.map((f) => element("tr", {}, element("th", {className: "left"}, f.name), element("td", {className: "left"}, kind(f.schema)),
    element("td", {className: "left"}, [f.required ? "required" : f.schema.default != null && !Array.isArray(f.schema.default) ? `${f.schema.default} by default` : "", f.description].filter(Boolean).join("; "))))))) : null;
  const inputs = given.filter((p) => p.in === "path").map((p) => element("input", {placeholder: p.name, "aria-label": p.name}));
  const text = body ? element("textarea", {"aria-label": "body", value: JSON.stringify(path === "/batch" ? {requests: [{user: "1"}, {items: ["1", "2"], k: 3}]} : {items: ["1", "2"], k: 5, why: true}, null, 2)}) : null;
  if (text) text.rows = text.value.split("\n").length + 1;
  const out = element("pre", {hidden: true});
  const send = element("button", {type: "button", onclick: async () => {
    const where = inputs.reduce((at, input) => at.replace(/\{\w+\}/, encodeURIComponent(input.value)), path);
    const answer = await fetch(where, body ? {method: verb.toUpperCase(), headers: {"Content-Type": "application/json"}, body: text.value} : {});
    const said = await answer.text();
    out.hidden = false;
    try { out.textContent = `${answer.status}\n${JSON.stringify(JSON.parse(said), null, 2)}`; } catch { out.textContent = `${answer.status}\n${said}`; }
  }}, "Send");
  return element("section", {className: "card route"}, element("h3", {}, element("span", {className: "verb"}, verb.toUpperCase()), element("code", {}, path), element("small", {}, route.summary ?? "")), table, text, element("div", {className: "go"}, inputs, send), out);
}
