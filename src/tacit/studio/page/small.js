// A small model of tally, read and ranked with in the page. The format is described in tacit/methods/tally_small.py.
export async function decode(buffer) {
  const bytes = new Uint8Array(buffer);
  if (new TextDecoder().decode(bytes.subarray(0, 5)) !== "tally" || bytes[7] !== 1) throw new Error("this is not a small model of tally");
  const told = new DataView(buffer).getUint32(8, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(12, 12 + told)));
  const stream = new Blob([bytes.subarray(12 + told)]).stream().pipeThrough(new DecompressionStream("deflate"));
  const body = await new Response(stream).arrayBuffer();
  let at = 0;
  const take = (Kind, count) => {
    const out = new Kind(body.slice(at, at + count * Kind.BYTES_PER_ELEMENT)); // a slice is aligned, the place in the body is not
    at += count * Kind.BYTES_PER_ELEMENT;
    return out;
  };
  const inputs = take(Int32Array, head.inputs);
  const begun = head.parts.map((p) => ({...p, base: take(Float32Array, head.items), step: take(Float32Array, p.rows), counts: take(Uint32Array, p.rows)}));
  const parts = {};
  for (const part of begun) {
    const column = new Int32Array(part.entries);
    for (let byte = 0; byte < head.gap; byte++) {
      const plane = take(Uint8Array, part.entries);
      for (let i = 0; i < part.entries; i++) column[i] |= plane[i] << (8 * byte);
    }
    const value = take(Int8Array, part.entries), start = new Uint32Array(part.rows + 1);
    for (let row = 0; row < part.rows; row++) {
      start[row + 1] = start[row] + part.counts[row];
      for (let i = start[row] + 1; i < start[row + 1]; i++) column[i] += column[i - 1];
    }
    parts[part.name] = {base: part.base, step: part.step, start, column, value};
  }
  const place = new Int32Array(head.items).fill(-1);
  if (inputs.length) inputs.forEach((item, row) => (place[item] = row));
  else place.forEach((_, item) => (place[item] = item));
  return {items: head.items, windows: head.windows, decays: head.decays, blend: head.blend, tilt: head.tilt ?? 0, rows: inputs.length || head.items, place, parts};
}

// The rows that a history names, each with its weight and the item it stands for.
function used(model, name, history) {
  const row = (item, scale) => (model.place[item] < 0 ? [] : [{row: scale * model.rows + model.place[item], item}]);
  if (name === "E") return history.flatMap((item) => row(item, 0).map((r) => ({...r, weight: 1})));
  const newest = history.slice().reverse();
  return model.windows.flatMap((window, scale) => newest.slice(0, window).flatMap((item, age) => row(item, scale).map((r) => ({...r, weight: model.decays[scale] ** age}))));
}

function scored(part, rows, items) {
  const total = new Float64Array(items);
  let weight = 0;
  for (const one of rows) {
    weight += one.weight;
    const scale = one.weight * part.step[one.row];
    for (let i = part.start[one.row]; i < part.start[one.row + 1]; i++) total[part.column[i]] += scale * part.value[i];
  }
  for (let i = 0; i < items; i++) total[i] += weight * part.base[i];
  const mean = total.reduce((a, b) => a + b, 0) / items;
  const deviation = Math.sqrt(total.reduce((a, b) => a + (b - mean) ** 2, 0) / Math.max(items - 1, 1)) || 1;
  return {total, mean, deviation};
}

const entry = (part, row, item) => {
  let low = part.start[row], high = part.start[row + 1] - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (part.column[middle] === item) return part.value[middle];
    if (part.column[middle] < item) low = middle + 1;
    else high = middle - 1;
  }
  return 0;
};

// w grows with the history: shares_of in methods/tally_small.py says how.
function shareOf(model, history) {
  if (model.blend === 0 || model.blend === 1) return model.blend;
  const length = history.filter((item) => model.place[item] >= 0).length;
  return Math.min(1, Math.max(0, model.blend + model.tilt * Math.log2(Math.max(length, 16) / 64)));
}

// The k best items that are not in the history, each with the items of the history that add most to its score.
export function rank(model, history, k = 10) {
  const scores = new Float64Array(model.items), made = [];
  const blend = shareOf(model, history);
  for (const [name, share] of [["B", 1 - blend], ["E", blend]]) {
    if (!(share > 0) || !model.parts[name]) continue;
    const part = model.parts[name], rows = used(model, name, history), found = scored(part, rows, model.items);
    for (let i = 0; i < model.items; i++) scores[i] += (share * (found.total[i] - found.mean)) / found.deviation;
    const base = part.base.reduce((a, b) => a + b, 0) / model.items;
    const means = rows.map((one) => {
      let sum = 0;
      for (let i = part.start[one.row]; i < part.start[one.row + 1]; i++) sum += part.value[i];
      return base + (part.step[one.row] * sum) / model.items;
    });
    made.push({part, rows, means, factor: share / found.deviation});
  }
  const owned = new Set(history), order = [];
  for (let i = 0; i < model.items; i++) if (!owned.has(i)) order.push(i);
  order.sort((a, b) => scores[b] - scores[a] || a - b);
  return order.slice(0, k).map((item) => {
    const added = new Map();
    for (const {part, rows, means, factor} of made) {
      rows.forEach((one, at) => {
        const here = one.weight * factor * (part.base[item] + part.step[one.row] * entry(part, one.row, item) - means[at]);
        added.set(one.item, (added.get(one.item) ?? 0) + here);
      });
    }
    const why = [...added].filter(([, share]) => share > 0).sort((a, b) => b[1] - a[1]).slice(0, 3);
    return {item, score: scores[item], why};
  });
}
