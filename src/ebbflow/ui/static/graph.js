// The graph of a pipeline, live: vertices as buttons on a drawing of their edges.

import { useWidth } from "./chart.js";
import { html, useMemo } from "./dom.js";
import { rate, tiny, tinyRate } from "./format.js";
import { conditionOf, Icon, TONES } from "./icons.js";
import { middle, path, place } from "./layout.js";
import { countRecent } from "./recent.js";

// From roomy to tight: the graph uses the first size that shows all layers side by side.
const ROOMY = { node: { width: 180, height: 84 }, gaps: { layer: 80, lane: 22 } };
const CLOSE = { node: { width: 172, height: 84 }, gaps: { layer: 52, lane: 20 } };
const COMPACT = { node: { width: 140, height: 60 }, gaps: { layer: 56, lane: 14 }, compact: true };
const TIGHT = { node: { width: 116, height: 58 }, gaps: { layer: 34, lane: 12 }, compact: true, tight: true };
const SLIM = { node: { width: 164, height: 84 }, gaps: { layer: 44, lane: 12 } };
const COMPACT_SLIM = {
  node: { width: 110, height: 58 },
  gaps: { layer: 34, lane: 10 },
  compact: true,
  tight: true,
};
const MANY = 12;
const NARROW = 640;
const EDGE = 32;
const PHONE_EDGE = 12;

/** Places the vertices within the width. In a narrow window layers go from top to bottom. */
function fit(names, edges, width) {
  const many = names.length > MANY;
  const down = width < NARROW;
  const room = width - (down ? PHONE_EDGE : EDGE);
  const choices = down ? [SLIM, COMPACT_SLIM] : many ? [COMPACT, TIGHT] : [ROOMY, CLOSE, COMPACT, TIGHT];
  for (const sizes of choices) {
    const layout = place(names, edges, { ...sizes, down });
    if (layout.width <= room) return { sizes, down, layout };
  }
  const sizes = down ? COMPACT_SLIM : COMPACT;
  return { sizes, down, layout: place(names, edges, { ...sizes, down, room: down ? Infinity : room }) };
}

export function Graph({ status, selected, onSelect }) {
  const [ref, width] = useWidth(800);
  const names = status.vertices.map((vertex) => vertex.name);
  const shape = JSON.stringify([names, status.edges.map((edge) => [edge.frm, edge.to])]);
  const { sizes, down, layout } = useMemo(() => fit(names, status.edges, width), [shape, width]);
  const compact = sizes.compact;
  const margin = { x: Math.max(down ? 6 : 16, (width - layout.width) / 2), y: 16 };
  const stressed = new Set(
    status.vertices
      .filter((vertex) => vertex.back_pressure)
      .map((vertex) => `${vertex.name}\n${vertex.back_pressure.to}`),
  );
  return html`<div class="graph ${compact ? "compact" : ""} ${sizes.tight ? "tight" : ""}" ref=${ref}>
    <div
      class="canvas"
      style=${`width:${layout.width + 2 * margin.x}px;height:${layout.height + 2 * margin.y}px`}
    >
      <svg
        width=${layout.width + 2 * margin.x}
        height=${layout.height + 2 * margin.y}
        aria-hidden="true"
        focusable="false"
      >
        <${Arrows} />
        <g transform=${`translate(${margin.x} ${margin.y})`}>
          ${layout.edges.map(
            (edge) => html`<${Edge}
              key=${`${edge.frm}\n${edge.to}\n${edge.index}`}
              drawn=${edge}
              edge=${measure(status.edges[edge.index] ?? edge, status)}
              down=${down}
              full=${stressed.has(`${edge.frm}\n${edge.to}`)}
              bare=${compact || edge.detour}
            />`,
          )}
        </g>
      </svg>
      <ul aria-label="Vertices">
        ${status.vertices.map((vertex) => {
          const { x, y } = layout.nodes.get(vertex.name);
          return html`<li
            key=${vertex.name}
            style=${`left:${x + margin.x}px;top:${y + margin.y}px;width:${sizes.node.width}px;height:${sizes.node.height}px`}
          >
            <${Node}
              vertex=${vertex}
              at=${status.at}
              compact=${compact}
              selected=${selected === vertex.name}
              onSelect=${onSelect}
            />
          </li>`;
        })}
      </ul>
    </div>
  </div>`;
}

function Arrows() {
  const head = (id) => html`<marker
    id=${`arrow-${id}`}
    class=${`arrow ${id}`}
    viewBox="0 0 8 8"
    refX="7"
    refY="4"
    markerWidth="8"
    markerHeight="8"
    markerUnits="userSpaceOnUse"
    orient="auto"
  >
    <path d="M0 0.5 8 4 0 7.5z" />
  </marker>`;
  return html`<defs>${["idle", "flow", "full"].map(head)}</defs>`;
}

/** An edge with its rate, or else the rate of an end that has no other edge. */
function measure(edge, status) {
  if (edge.rate || edge.written) return edge;
  const alone = (side) => status.edges.filter((other) => other[side] === edge[side]).length === 1;
  const vertex = (name) => status.vertices.find((vertex) => vertex.name === name);
  if (alone("to")) return { ...edge, rate: vertex(edge.to)?.rate_in };
  return alone("frm") ? { ...edge, rate: vertex(edge.frm)?.rate_out } : edge;
}

/** An edge: thicker for a higher rate; dashed and labelled when the buffer at its end is full. */
function Edge({ drawn, edge, down, full, bare }) {
  const kind = full ? "full" : edge.rate > 0 ? "flow" : "idle";
  const most = drawn.detour ? 1.5 : bare ? 2.2 : 4;
  const thickness = full ? 3 : Math.min(most, 1.2 + Math.log10(1 + (edge.rate ?? 0)) * 0.6);
  const [x, y] = middle(drawn);
  const words = full ? "full" : edge.rate > 0 ? `${rate(edge.rate)}/s` : "";
  return html`<g class="edge ${kind}">
    ${edge.inline && html`<title>inline: a task of ${edge.frm} runs ${edge.to} itself</title>`}
    <path d=${path(drawn, down)} stroke-width=${thickness} marker-end=${`url(#arrow-${kind})`} />
    ${words && (!bare || full) && html`<text x=${x} y=${y - 5} text-anchor="middle">${words}</text>`}
    ${
      edge.tags &&
      !bare &&
      html`<text class="tags" x=${x} y=${y + 12} text-anchor="middle">${shorten(edge.tags, 13)}</text>`
    }
  </g>`;
}

function shorten(text, limit) {
  return text.length > limit ? `${text.slice(0, limit - 1)}…` : text;
}

function Node({ vertex, at, compact, selected, onSelect }) {
  const passing = vertex.kind === "source" ? vertex.rate_out : vertex.rate_in;
  const condition = conditionOf(vertex);
  const tone = TONES[condition] ?? "quiet";
  const full = vertex.back_pressure;
  return html`<button
    type="button"
    class="node ${tone} ${full ? "pressed" : ""}"
    aria-pressed=${selected}
    title=${vertex.words || condition}
    data-vertex=${vertex.name}
    data-condition=${condition}
    onClick=${() => onSelect(vertex.name)}
  >
    <span class="title">
      <span class="name">${vertex.name}</span>
      <${Mark} vertex=${vertex} at=${at} />
    </span>
    <span class="state">
      <span class="word ${tone}"><${Icon} name=${condition} size="13" /><span>${condition}</span></span>
      <span class="rates number">${(compact ? tinyRate : rate)(passing)}/s</span>
    </span>
    <span class="figures number">
      <${Figure} icon="stack" name="pending" value=${vertex.pending} tone=${full ? "warn" : ""} />
      <${Figure} icon="clock" name="parked" value=${vertex.parked.messages} tone="warn" />
      <${Figure} icon="letter" name="dead letters" value=${vertex.dead_letters} tone="error" />
    </span>
  </button>`;
}

/** The corner of a vertex: a full buffer ahead, errors of the last minute, or its kind. */
function Mark({ vertex, at }) {
  if (vertex.back_pressure) return html`<span class="full"><${Icon} name="pressure" size="13" />full</span>`;
  const errors = countRecent(vertex, at);
  if (errors) {
    return html`<span class="failing" title="errors in the last minute">
      <span><${Icon} name="stuck" size="12" />${tiny(errors)}</span>
      <span>${errors === 1 ? "error" : "errors"}</span>
    </span>`;
  }
  return html`<span class="kind">${vertex.kind}${vertex.partitions > 1 ? ` ×${vertex.partitions}` : ""}</span>`;
}

function Figure({ icon, name, value, tone }) {
  return html`<span class=${value ? `figure ${tone}` : "figure none"}>
    <${Icon} name=${icon} size="13" />${tiny(value)}<span class="visually-hidden"> ${name}</span>
  </span>`;
}

export function Key() {
  return html`<p class="key">
    <span><${Icon} name="stack" size="13" /> pending</span>
    <span><${Icon} name="clock" size="13" /> parked</span>
    <span><${Icon} name="letter" size="13" /> dead letters</span>
    <span><${Icon} name="pressure" size="13" /> next buffer full</span>
  </p>`;
}
