// One function draws every figure: draw(specification) -> SVG element; frame() gives it a title and buttons.
import {FONT} from "./parts.js";
import {KINDS} from "./kinds.js";

export function draw(spec, width = 720) {
  const svg = KINDS[spec.kind](spec, width);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${spec.title}. ${spec.note}`);
  svg.setAttribute("font-family", FONT);
  svg.classList.add("drawing");
  return svg;
}

// A figure with its title, what it shows, and the buttons that save it.
export function frame(spec) {
  const figure = document.createElement("figure");
  figure.dataset.figure = spec.name;
  const head = figure.appendChild(document.createElement("div"));
  head.className = "head";
  const title = head.appendChild(document.createElement("h3"));
  title.textContent = spec.title;
  if (spec.where) title.appendChild(Object.assign(document.createElement("small"), {textContent: spec.where}));
  const tools = head.appendChild(document.createElement("div"));
  tools.className = "tools";
  for (const kind of ["SVG", "PNG"]) {
    const button = tools.appendChild(document.createElement("button"));
    Object.assign(button, {type: "button", textContent: kind, title: `Save figure as ${kind}`, className: "quiet"});
    button.setAttribute("aria-label", `Save figure as ${kind}`);
    button.addEventListener("click", () => save(spec, kind.toLowerCase()));
  }
  const hold = figure.appendChild(document.createElement("div"));
  hold.className = "hold";
  const note = figure.appendChild(document.createElement("figcaption"));
  note.textContent = spec.note;
  let drawn = 0;
  const fit = () => {
    const wide = Math.round(Math.max(300, Math.min(hold.clientWidth || 720, 1000)));
    if (Math.abs(wide - drawn) < 2) return;
    drawn = wide;
    hold.replaceChildren(draw(spec, wide));
  };
  figure.show = (next) => {
    if (JSON.stringify(next) === JSON.stringify(spec)) return;
    spec = next;
    note.textContent = spec.note;
    drawn = 0;
    fit();
  };
  new ResizeObserver(fit).observe(hold);
  return figure;
}

// As it is printed: dark on white, colours written out, so that it is the same in any program.
export function standalone(spec, width = 720) {
  const light = document.body.appendChild(document.createElement("div"));
  light.className = "light";
  light.style.cssText = "position:absolute;left:-9999px;color:#1a1c1f";
  const svg = draw(spec, width);
  light.append(svg);
  const style = getComputedStyle(light);
  const text = new XMLSerializer().serializeToString(svg)
    .replaceAll(/var\((--[\w-]+)\)/g, (whole, name) => style.getPropertyValue(name).trim() || "#888")
    .replaceAll(/currentcolor/gi, "#1a1c1f");
  light.remove();
  return text.includes("xmlns=") ? text : text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"');
}

export async function save(spec, kind) {
  const text = standalone(spec);
  let blob = new Blob([text], {type: "image/svg+xml"});
  if (kind === "png") blob = await png(text);
  const link = Object.assign(document.createElement("a"), {href: URL.createObjectURL(blob), download: `${spec.name}.${kind}`});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function png(text, scale = 3) {
  return new Promise((done, failed) => {
    const image = new Image();
    image.onload = () => {
      const canvas = Object.assign(document.createElement("canvas"), {width: image.width * scale, height: image.height * scale});
      const pen = canvas.getContext("2d");
      pen.fillStyle = "white";
      pen.fillRect(0, 0, canvas.width, canvas.height);
      pen.drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(done, "image/png");
    };
    image.onerror = failed;
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  });
}
