// Tables as they come from Python: drawn, and as text for documents.
export const element = (name, options = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "dataset") Object.assign(made.dataset, value);
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key.includes("-")) made.setAttribute(key, value);
    else if (value !== undefined) made[key] = value;
  }
  made.append(...children.flat().filter((child) => child != null && child !== false));
  return made;
};

export function table(spec) {
  const head = element("tr", {}, spec.heads.map((h) =>
    element("th", {scope: "col", className: h.left ? "left" : ""}, h.text, h.note ? element("small", {}, h.note) : null)));
  const body = spec.rows.map((row) =>
    element("tr", {className: row[0].grey ? "grey" : row[0].text ? "" : "more"}, row.map((cell, i) =>
      element(i ? "td" : "th", {className: (spec.heads[i].left ? "left" : "") + (cell.best ? " best" : ""), scope: i ? undefined : "row", title: cell.title ?? ""},
        i || cell.style === undefined || cell.style < 0 ? null : element("i", {className: `key s${cell.style % 8}`}),
        cell.href ? element("a", {href: cell.href}, cell.text) : cell.text,
        cell.spread ? element("small", {}, ` ±${cell.spread}`) : null))));
  return element("div", {className: "scroll", tabIndex: 0, role: "region", "aria-label": spec.title},
    element("table", {}, element("thead", {}, head), element("tbody", {}, body)));
}

export function section(spec) {
  const tools = element("div", {className: "tools"}, Object.entries(FORMATS).map(([name, write]) =>
    element("button", {type: "button", className: "quiet", title: `Copy as ${name}`, onclick: (event) => copy(write(spec), event.target)}, name)));
  return element("section", {className: spec.small ? "small table" : "table"},
    element("div", {className: "head"}, element("h3", {}, spec.title), tools), table(spec),
    (spec.remarks ?? []).map((line) => element("p", {className: "remark"}, line)));
}

export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // a page from disk, or a browser that asks first
    const area = element("textarea", {value: text});
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
  setTimeout(() => (button.textContent = before), 1200);
}

const plain = (cell) => cell.text + (cell.spread ? ` ±${cell.spread}` : "");
const heading = (head) => head.text + (head.note ? ` (${head.note})` : "");
const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
const TEX = {"\\": "\\textbackslash{}", "%": "\\%", "&": "\\&", _: "\\_", "#": "\\#", $: "\\$", "{": "\\{", "}": "\\}", "±": "$\\pm$", "ε": "$\\varepsilon$", "∞": "$\\infty$", "–": "--", "^": "\\^{}", "~": "\\~{}"};
const tex = (text) => text.replaceAll(/[\\%&_#${}±ε∞–^~]/g, (letter) => TEX[letter]);

export const FORMATS = {
  Markdown: (spec) => [
    `| ${spec.heads.map(heading).join(" | ")} |`,
    `|${spec.heads.map((h) => (h.left ? "---|" : "---:|")).join("")}`,
    ...spec.rows.map((row) => `| ${row.map((c) => (c.best ? `**${plain(c)}**` : plain(c)).replaceAll("|", "\\|")).join(" | ")} |`),
  ].join("\n") + "\n",
  LaTeX: (spec) => [
    `\\begin{tabular}{${spec.heads.map((h) => (h.left ? "l" : "r")).join("")}}`,
    "\\toprule",
    `${spec.heads.map((h) => tex(heading(h))).join(" & ")} \\\\`,
    "\\midrule",
    ...spec.rows.map((row) => `${row.map((c) => (c.best ? `\\textbf{${tex(plain(c))}}` : tex(plain(c)))).join(" & ")} \\\\`),
    "\\bottomrule",
    "\\end{tabular}",
  ].join("\n") + "\n",
  CSV: (spec) => {
    const spreads = spec.heads.map((_, i) => spec.rows.some((row) => row[i].spread));
    const wide = (first, second) => spec.heads.flatMap((_, i) => (spreads[i] ? [first(i), second(i)] : [first(i)]));
    return [
      wide((i) => heading(spec.heads[i]), (i) => `${heading(spec.heads[i])} deviation`),
      ...spec.rows.map((row) => wide((i) => row[i].text, (i) => row[i].spread ?? "")),
    ].map((cells) => cells.map(quoted).join(",")).join("\n") + "\n";
  },
};
