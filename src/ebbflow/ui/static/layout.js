// The layout of a graph: layers from left to right, or from top to bottom. Pure functions.
//
// A vertex is one layer after the last vertex that feeds it, ignoring edges that close a cycle. An
// edge over several layers keeps a lane free in each, so that it passes next to the vertices and not
// behind them. Layers that do not fit continue in the next band, like words in the next line.

const SWEEPS = 6;

/**
 * Returns {nodes: Map name → {x, y}, edges: [{frm, to, points, detour}], width, height}.
 *
 * sizes: node {width, height}, gaps {layer, lane}, room (pixels along the layers before a new band
 * begins; Infinity for one band), down (layers from top to bottom).
 */
export function place(names, edges, sizes) {
  const forward = findForward(names, edges);
  const layerOf = findLayers(names, edges, forward);
  const lanes = makeLanes(names, edges, forward, layerOf);
  order(lanes);
  return position(lanes, edges, sizes);
}

/** Which edges lead forward; the others close a cycle. */
function findForward(names, edges) {
  const next = new Map(names.map((name) => [name, []]));
  edges.forEach((edge, index) => next.get(edge.frm)?.push([edge.to, index]));
  const state = new Map();
  const forward = edges.map((edge) => edge.frm !== edge.to);
  const walk = (name) => {
    state.set(name, "open");
    for (const [to, index] of next.get(name) ?? []) {
      if (state.get(to) === "open") forward[index] = false;
      else if (!state.has(to)) walk(to);
    }
    state.set(name, "closed");
  };
  const fed = new Set(edges.filter((edge) => edge.frm !== edge.to).map((edge) => edge.to));
  const roots = names.filter((name) => !fed.has(name));
  for (const name of [...roots, ...names]) if (!state.has(name)) walk(name);
  return forward;
}

function findLayers(names, edges, forward) {
  const layerOf = new Map(names.map((name) => [name, 0]));
  const ahead = edges.filter((edge, index) => forward[index]);
  for (let round = 0; round < names.length; round++) {
    let moved = false;
    for (const { frm, to } of ahead) {
      const least = layerOf.get(frm) + 1;
      if (layerOf.get(to) < least) {
        layerOf.set(to, least);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return layerOf;
}

/** Layers of cells. A cell is a vertex, or the lane of an edge that passes through. */
function makeLanes(names, edges, forward, layerOf) {
  const layers = [];
  const put = (layer, cell) => ((layers[layer] ??= []).push(cell), cell);
  const cellOf = new Map();
  for (const name of names) {
    const cell = { name, layer: layerOf.get(name), before: [], after: [] };
    cellOf.set(name, put(cell.layer, cell));
  }
  const ways = edges.map((edge, index) => {
    const [from, to] = [cellOf.get(edge.frm), cellOf.get(edge.to)];
    if (!forward[index]) return null;
    const way = [from];
    for (let layer = from.layer + 1; layer < to.layer; layer++) {
      way.push(put(layer, { layer, before: [], after: [] }));
    }
    way.push(to);
    way.slice(1).forEach((cell, at) => {
      cell.before.push(way[at]);
      way[at].after.push(cell);
    });
    return way;
  });
  return { layers: [...layers].map((layer) => layer ?? []), ways, cellOf };
}

/** Sorts each layer by the middle of its neighbours, back and forth, to reduce crossings. */
function order({ layers }) {
  const number = (layer) => layer.forEach((cell, at) => (cell.at = at));
  layers.forEach(number);
  const sort = (layer, side) => {
    const middle = (cell) =>
      cell[side].length
        ? cell[side].reduce((sum, other) => sum + other.at / span(other, layers), 0) / cell[side].length
        : cell.at / span(cell, layers);
    const keyed = layer.map((cell) => [middle(cell), cell.at, cell]);
    keyed.sort((left, right) => left[0] - right[0] || left[1] - right[1]);
    layer.splice(0, layer.length, ...keyed.map(([, , cell]) => cell));
    number(layer);
  };
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    layers.forEach((layer) => sort(layer, "before"));
    [...layers].reverse().forEach((layer) => sort(layer, "after"));
  }
  layers.forEach((layer) => sort(layer, "before"));
}

function span(cell, layers) {
  return Math.max(1, layers[cell.layer].length - 1);
}

function position({ layers, ways, cellOf }, edges, sizes) {
  const { node, gaps, room = Infinity, down = false } = sizes;
  const [along, across] = down ? [node.height, node.width] : [node.width, node.height];
  const step = along + gaps.layer;
  const perBand = Math.min(layers.length, Math.max(2, Math.floor((room + gaps.layer) / step)));
  const bands = Math.ceil(layers.length / perBand);
  const perLine = Math.ceil(layers.length / bands);
  const laneOf = (cell) => (cell.name ? across : across * 0.4);
  const thick = (layer) =>
    layer.reduce((sum, cell) => sum + laneOf(cell), 0) + gaps.lane * (layer.length - 1);
  let top = 0;
  const tops = [];
  const bottoms = [];
  const detours = edges.some((edge, index) => !ways[index]);
  for (let band = 0; band < bands; band++) {
    const inBand = layers.slice(band * perLine, (band + 1) * perLine);
    const height = Math.max(...inBand.map(thick));
    tops.push(top);
    inBand.forEach((layer, at) => {
      let offset = top + (height - thick(layer)) / 2;
      for (const cell of layer) {
        cell.band = band;
        cell.along = at * step;
        cell.middle = offset + laneOf(cell) / 2;
        offset += laneOf(cell) + gaps.lane;
      }
    });
    bottoms.push(top + height);
    top += height + gaps.lane * 2.5;
  }
  const point = (a, b) => (down ? [b, a] : [a, b]);
  const nodes = new Map();
  for (const [name, cell] of cellOf) {
    const [x, y] = point(cell.along, cell.middle - across / 2);
    nodes.set(name, { x, y });
  }
  const margin = gaps.layer * 0.45;
  const gapBelow = (band) => bottoms[band] + gaps.lane * 1.25;
  /** From the end, through the gap below the band, and back to the front of the target. */
  const around = (from, to, lane) => [
    [from.along + along, from.middle],
    [from.along + along + margin + lane, from.middle],
    [from.along + along + margin + lane, gapBelow(from.band) + lane],
    [to.along - margin - lane, gapBelow(from.band) + lane],
    [to.along - margin - lane, to.middle],
    [to.along, to.middle],
  ];
  const drawn = edges.map((edge, index) => {
    const way = ways[index];
    const [from, to] = [cellOf.get(edge.frm), cellOf.get(edge.to)];
    const lane = (index % 4) * 3;
    if (!way || from.band !== to.band) {
      const points = around(from, to, lane).map(([a, b]) => point(a, b));
      return { ...edge, index, points, detour: true };
    }
    const points = way.flatMap((cell, at) => {
      const ends = [];
      if (at > 0) ends.push([cell.along, cell.middle]);
      if (at < way.length - 1) ends.push([cell.along + along, cell.middle]);
      return ends;
    });
    return { ...edge, index, points: points.map(([a, b]) => point(a, b)), detour: false };
  });
  const farAlong = perLine * step - gaps.layer;
  const farAcross = bottoms.at(-1) + (detours ? gaps.lane * 1.25 + 12 : 0);
  const [width, height] = point(farAlong, farAcross);
  return { nodes, edges: drawn, width, height, bands };
}

/** The SVG path of an edge: smooth from layer to layer, with round corners for a detour. */
export function path({ points, detour }, down) {
  return detour ? rounded(points, 10) : smooth(points, down);
}

function smooth(points, down) {
  let text = `M${points[0]}`;
  for (let at = 1; at < points.length; at++) {
    const [[x1, y1], [x2, y2]] = [points[at - 1], points[at]];
    const [mx, my] = [(x1 + x2) / 2, (y1 + y2) / 2];
    text += down ? `C${x1},${my} ${x2},${my} ${x2},${y2}` : `C${mx},${y1} ${mx},${y2} ${x2},${y2}`;
  }
  return text;
}

function rounded(points, radius) {
  let text = `M${points[0]}`;
  for (let at = 1; at < points.length - 1; at++) {
    const [before, corner, after] = [points[at - 1], points[at], points[at + 1]];
    text += `L${toward(corner, before, radius)}Q${corner} ${toward(corner, after, radius)}`;
  }
  return `${text}L${points.at(-1)}`;
}

function toward([x, y], [otherX, otherY], wanted) {
  const length = Math.hypot(otherX - x, otherY - y) || 1;
  const part = Math.min(wanted, length / 2) / length;
  return [x + (otherX - x) * part, y + (otherY - y) * part];
}

/** The middle of an edge's path, where its label is. */
export function middle({ points, detour }) {
  const at = detour ? 2 : points.length - 2;
  const [[x1, y1], [x2, y2]] = [points[at], points[at + 1]];
  const part = detour ? 0.5 : 0.56;
  return [x1 + (x2 - x1) * 0.5, y1 + (y2 - y1) * part];
}
