// A pipeline at a glance: problems first, then its graph, charts and a table of its vertices.

import { html } from "../dom.js";
import { brief, count, due, duration, rate } from "../format.js";
import { Graph, Key } from "../graph.js";
import { Badge, conditionOf, say } from "../icons.js";
import { isLate } from "../recent.js";
import { address, go } from "../route.js";
import { Charts } from "./charts.js";
import { Problems } from "./problems.js";
import { VertexPanel } from "./vertex.js";

export function Overview({ pipeline, live, vertex, now }) {
  const { status, samples } = live;
  const shown = status.vertices.find((other) => other.name === vertex);
  const select = (name) => (name && name !== vertex ? go([pipeline, "vertices", name]) : go([pipeline]));
  const [entries, exits] = findEnds(status);
  return html`<div class="overview ${shown ? "with-panel" : ""}">
    <div class="main">
      <${Problems} status=${status} pipeline=${pipeline} />
      <${Sums} status=${status} entries=${entries} exits=${exits} pipeline=${pipeline} now=${now} />
      <section class="card" aria-label="Graph">
        <header><h2>Graph</h2><${Key} /></header>
        <${Graph} status=${status} selected=${vertex} onSelect=${select} />
      </section>
      <${Charts}
        samples=${samples}
        names=${status.vertices.map((vertex) => vertex.name)}
        entries=${entries}
        exits=${exits}
      />
      <${Table} status=${status} pipeline=${pipeline} selected=${vertex} />
    </div>
    ${
      shown &&
      html`<${VertexPanel}
      key=${vertex}
      pipeline=${pipeline}
      status=${status}
      vertex=${shown}
      samples=${samples}
      now=${now}
      onClose=${() => go([pipeline])}
    />`
    }
  </div>`;
}

/** The vertices without incoming edges, and those without outgoing ones. */
function findEnds(status) {
  const fed = new Set(status.edges.map((edge) => edge.to));
  const feeding = new Set(status.edges.map((edge) => edge.frm));
  const names = status.vertices.map((vertex) => vertex.name);
  return [names.filter((name) => !fed.has(name)), names.filter((name) => !feeding.has(name))];
}

function Sums({ status, entries, exits, pipeline, now }) {
  const add = (take, names) =>
    status.vertices
      .filter((vertex) => !names || names.includes(vertex.name))
      .reduce((total, vertex) => total + (take(vertex) ?? 0), 0);
  const dues = status.vertices
    .map((vertex) => vertex.parked.next_due)
    .filter(Boolean)
    .sort();
  const letters = add((vertex) => vertex.dead_letters);
  const isEstimate = status.vertices.some((vertex) => !vertex.pending_exact);
  const sourcePending = status.vertices.some((vertex) => vertex.source_pending != null);
  return html`<dl class="sums">
    <${Sum} name="in" value=${`${rate(add((vertex) => vertex.rate_in || vertex.rate_out, entries))}/s`} />
    <${Sum} name="out" value=${`${rate(add((vertex) => vertex.rate_in, exits))}/s`} />
    <${Sum}
      name="pending"
      value=${`${isEstimate ? "≈ " : ""}${count(add((vertex) => vertex.pending))}`}
      note=${sourcePending ? `${brief(add((vertex) => vertex.source_pending))} at sources` : ""}
    />
    <${Sum} name="oldest waiting" ...${describeOldest(status.vertices)} />
    <${Sum} name="drained in" ...${describeDrain(status.vertices)} />
    <${Sum} name="in flight" value=${count(add((vertex) => vertex.in_flight?.messages))} />
    <${Sum}
      name="parked"
      value=${count(add((vertex) => vertex.parked.messages))}
      note=${dues.length ? due(dues[0], now) : ""}
    />
    <${Sum}
      name="dead letters"
      value=${html`<a href=${address([pipeline, "dead-letters"])}>${count(letters)}</a>`}
      tone=${letters ? "error" : ""}
    />
    <${Sum} name="restarts" value=${count(add((vertex) => vertex.restarts))} />
  </dl>`;
}

/** The age of the oldest waiting message, and its vertex. */
function describeOldest(vertices) {
  const oldest = largest(vertices, "oldest_waiting_seconds");
  return oldest ? { value: duration(oldest.oldest_waiting_seconds), note: `at ${oldest.name}` } : { value: "–" };
}

/** When all backlogs are drained at the current rates, unless one is growing. */
function describeDrain(vertices) {
  const late = vertices.filter(isLate);
  const growing = largest(late, "backlog_growing_seconds");
  if (growing) return { value: "growing", note: `at ${growing.name}`, tone: growing.falling_behind ? "error" : "" };
  const last = largest(late, "drain_seconds");
  return last ? { value: duration(last.drain_seconds), note: `at ${last.name}` } : { value: "–" };
}

function largest(vertices, field) {
  const known = vertices.filter((vertex) => vertex[field] != null);
  return known.length ? known.reduce((most, vertex) => (vertex[field] > most[field] ? vertex : most)) : null;
}

function Sum({ name, value, note, tone = "" }) {
  return html`<div class=${tone} data-sum=${name}>
    <dt>${name}</dt>
    <dd class="number">${value}</dd>
    <dd class="note">${note}</dd>
  </div>`;
}

const COLUMNS = [
  "vertex",
  "condition",
  "in/s",
  "out/s",
  "pending",
  "in flight",
  "parked",
  "dead",
  "restarts",
];

function Table({ status, pipeline, selected }) {
  return html`<section class="card" aria-label="Vertices">
    <header><h2>Vertices</h2><span class="muted number">${status.vertices.length}</span></header>
    <div class="scroll">
      <table class="vertices">
        <thead>
          <tr>${COLUMNS.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr>
        </thead>
        <tbody>
          ${status.vertices.map(
            (vertex) =>
              html`<${Row} key=${vertex.name} vertex=${vertex} pipeline=${pipeline} selected=${selected === vertex.name} />`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

/** The numbers of a vertex, and a line with details that its condition does not show. */
function Row({ vertex, pipeline, selected }) {
  const words = say(vertex);
  return html`<tr class=${selected ? "selected" : ""}>
      <th scope="row">
        <a href=${address([pipeline, "vertices", vertex.name])}>${vertex.name}</a>
      </th>
      <td><${Badge} condition=${conditionOf(vertex)} /></td>
      <td data-name="in/s">${rate(vertex.rate_in)}</td>
      <td data-name="out/s">${rate(vertex.rate_out)}</td>
      <td data-name="pending">${`${vertex.pending_exact ? "" : "≈ "}${count(vertex.pending)}`}</td>
      <td data-name="in flight">${count(vertex.in_flight?.messages ?? 0)}</td>
      <td data-name="parked">${`${vertex.parked.exact === false ? "≈ " : ""}${count(vertex.parked.messages)}`}</td>
      <td data-name="dead" class=${vertex.dead_letters ? "error" : ""}>${count(vertex.dead_letters)}</td>
      <td data-name="restarts" class=${vertex.restarts ? "error" : ""}>${count(vertex.restarts)}</td>
    </tr>
    ${words && html`<tr class="said ${selected ? "selected" : ""}"><td colspan=${COLUMNS.length}>${words}</td></tr>`}`;
}
