// What all pages share: asking the server, sentences for errors, numbers for people.
import {element} from "/static/figures/table.js";
import {bytes} from "/static/figures/parts.js";
export {element, bytes};

const KEY = "tacit-token";
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", "#/runs");
}
export const allowed = () => sessionStorage.getItem(KEY) !== null;

export async function ask(path, {method = "GET", body, raw = false} = {}) {
  const headers = {};
  if (allowed()) headers["X-Tacit-Token"] = sessionStorage.getItem(KEY);
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {method, headers, body: body ? JSON.stringify(body) : undefined});
  } catch {
    throw new Error("the studio does not answer; has it been ended?");
  }
  if (raw && answer.ok) return answer.arrayBuffer();
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.error ?? `the studio answered ${answer.status}`);
  return value;
}

// A run's name in a path: its slashes stay, everything else is written out.
export const path = (name) => name.split("/").map(encodeURIComponent).join("/");
export const failed = (error) => element("p", {className: "error", role: "alert"}, error.message);
export const empty = (...children) => element("div", {className: "empty"}, ...children);
export const code = (text) => element("code", {}, text);
export const tiles = (pairs) => element("dl", {className: "tiles"}, pairs.filter(Boolean).map(([name, value, note]) =>
  element("div", {}, element("dt", {}, name), element("dd", {dataset: {tile: name}}, value, note ? element("small", {}, ` ${note}`) : null))));

export const duration = (seconds) => {
  if (seconds == null) return "–";
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${(seconds / 3600).toFixed(1)} h`;
};
export const ago = (time) => {
  const seconds = Math.max(0, Date.now() / 1000 - time);
  return seconds < 90 ? `${Math.round(seconds)} s ago` : seconds < 5400 ? `${Math.round(seconds / 60)} min ago`
    : seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
};
export const budget = (value) => (value == null ? "none promised" : value === "inf" ? "∞" : (+value).toPrecision(3));
export const figure4 = (value) => (value == null ? "–" : (+value).toFixed(4));

// Choose a run among those that fit; the choice is part of the address.
export function chooser(runs, chosen, go, label = "run") {
  const select = element("select", {"aria-label": label, onchange: (event) => go(event.target.value)},
    runs.map((run) => element("option", {value: run.id, selected: run.id === chosen}, run.id)));
  return element("label", {className: "field"}, label, select);
}
