// One vertex: its current state, its errors, and where its chunks spend their time.

import * as api from "../api.js";
import { html } from "../dom.js";
import { clock, count, due, duration, instant, plural, rate } from "../format.js";
import { Badge, conditionOf, Icon, say } from "../icons.js";
import { Causes, Empty, Moment, useAnswer, usePanel } from "../parts.js";
import { isLate } from "../recent.js";
import { address } from "../route.js";
import { Charts } from "./charts.js";
import { PauseButton } from "./pausing.js";
import { Stages, Timeline } from "./stages.js";

export function VertexPanel({ pipeline, status, vertex, samples, now, onClose }) {
  const ref = usePanel(onClose);
  return html`<aside class="panel" aria-label=${`Vertex ${vertex.name}`} tabindex="-1" ref=${ref}>
    <header>
      <div>
        <h2>${vertex.name}</h2>
        <p class="muted">
          ${vertex.kind}, ${plural(vertex.partitions, "partition")}${describeTasks(vertex, status)}
        </p>
      </div>
      <div class="buttons">
        <${PauseButton} pipeline=${pipeline} vertex=${vertex.name} paused=${vertex.condition === "paused"} phase=${status.phase} />
        <button type="button" class="quiet square" aria-label="Close" onClick=${onClose}>
          <${Icon} name="close" />
        </button>
      </div>
    </header>
    <p class="condition"><${Badge} condition=${conditionOf(vertex)} />
      <span>${say(vertex)}</span>
    </p>
    <${Trouble} vertex=${vertex} now=${now} />
    <${Now} vertex=${vertex} pipeline=${pipeline} now=${now} />
    <${Errors} vertex=${vertex} pipeline=${pipeline} now=${now} />
    <${Reasons} vertex=${vertex} pipeline=${pipeline} />
    <${Chunks} pipeline=${pipeline} vertex=${vertex} at=${status.at} />
    <${Logs} pipeline=${pipeline} vertex=${vertex.name} at=${status.at} />
    <${Totals} vertex=${vertex} />
    <${Charts}
      samples=${samples}
      names=${[vertex.name]}
      entries=${[vertex.name]}
      exits=${[vertex.name]}
      labels=${["read", "written"]}
      title=${`Charts of ${vertex.name}`}
    />
  </aside>`;
}

function describeTasks(vertex, status) {
  if (status.phase === "ended" || !vertex.partitions_up) return "";
  return `, ${plural(vertex.partitions_up, "task")} running`;
}

/** Sentences about what blocks the vertex. */
function Trouble({ vertex, now }) {
  const lines = [];
  if (vertex.failure) lines.push(["error", vertex.failure]);
  if (vertex.never_opened && vertex.restarts)
    lines.push(["error", "Its code has not opened in this run yet."]);
  if (vertex.halted) lines.push(["error", vertex.halted]);
  if (vertex.back_pressure) {
    const { to, full_since: since } = vertex.back_pressure;
    lines.push([
      "warn",
      `The buffer of ${to} has been full for ${duration((now - instant(since)) / 1000)}: this vertex waits for it.`,
    ]);
  }
  if (vertex.in_call) lines.push(["warn", `User code has been in one call for ${duration(vertex.in_call)}.`]);
  const fresh = lines.filter(([, text]) => !vertex.words.includes(text));
  return html`${fresh.map(([tone, text]) => html`<p key=${text.slice(0, 24)} class="callout ${tone}">${text}</p>`)}`;
}

function Now({ vertex, pipeline, now }) {
  const { parked, in_flight: inFlight } = vertex;
  return html`<dl class="facts">
    <${Fact} name="in" value=${`${rate(vertex.rate_in)}/s`} />
    <${Fact} name="out" value=${`${rate(vertex.rate_out)}/s`} />
    <${Fact}
      name="pending"
      value=${`${vertex.pending_exact ? "" : "≈ "}${count(vertex.pending)}`}
      note=${vertex.source_pending == null ? "" : `${count(vertex.source_pending)} at the source`}
    />
    <${Fact}
      name="in flight"
      value=${count(inFlight?.messages ?? 0)}
      note=${describeAge(inFlight, now)}
    />
    <${Fact}
      name="oldest waiting"
      value=${duration(vertex.oldest_waiting_seconds)}
      note=${describeBacklog(vertex)}
      tone=${vertex.falling_behind ? "error" : ""}
      wide
    />
    <${Fact}
      name="parked"
      value=${`${parked.exact === false ? "≈ " : ""}${count(parked.messages)}`}
      note=${parked.next_due && due(parked.next_due, now, true)}
      wide
    />
    <${Fact}
      name="dead letters"
      value=${html`<a href=${address([pipeline, "dead-letters"], { vertex: vertex.name })}>${count(vertex.dead_letters)}</a>`}
      tone=${vertex.dead_letters ? "error" : ""}
    />
    <${Fact} name="restarts" value=${count(vertex.restarts)} tone=${vertex.restarts ? "error" : ""} />
    <${Fact}
      name="watermark"
      value=${vertex.watermark ? clock(vertex.watermark, now) : "–"}
      note=${vertex.watermark ? `${duration(Math.max(0, (now - instant(vertex.watermark)) / 1000))} behind` : ""}
      wide
    />
  </dl>`;
}

/** Whether the backlog is growing, or else when it is drained. */
function describeBacklog(vertex) {
  const { backlog_growing_seconds: growing, drain_seconds: drain } = vertex;
  if (!isLate(vertex)) return "";
  if (growing != null) return `growing for ${duration(growing)}`;
  return drain == null ? "" : `drained in ${duration(drain)}`;
}

/** How long the oldest message has been in flight, unless that is normal. */
function describeAge(inFlight, now) {
  const seconds = inFlight?.messages ? (now - instant(inFlight.since)) / 1000 : 0;
  return seconds < 2 ? "" : `for ${duration(seconds)}`;
}

function Fact({ name, value, note, tone = "", wide }) {
  return html`<div class="${tone} ${wide ? "wide" : ""}" data-fact=${name}>
    <dt>${name}</dt>
    <dd class="number">${value}</dd>
    <dd class="note">${note}</dd>
  </div>`;
}

function Errors({ vertex, pipeline, now }) {
  if (!vertex.errors.length) return null;
  return html`<section aria-label="Errors">
    <h3>Errors</h3>
    ${vertex.errors.map(
      (
        error,
        at,
      ) => html`<details key=${`${error.kind}${error.where}${error.text}`} class="error-group" open=${at === 0}>
        <summary>
          <span class="number times">${count(error.count)}×</span>
          <span class="text"><b>${error.kind}</b>${error.text ? `: ${error.text}` : ""}</span>
          <span class="where">${error.where}</span>
          <span class="muted"><${Moment} at=${error.last} now=${now} only="distance" /></span>
        </summary>
        <p class="muted">
          First <${Moment} at=${error.first} now=${now} only="clock" />, last <${Moment} at=${error.last} now=${now} only="clock" />${
            error.message_id &&
            html`, last by message <a href=${address([pipeline, "trace", error.message_id])}>${error.message_id}</a>`
          }
        </p>
        ${
          error.traceback
            ? html`<pre class="traceback" tabindex="0">${error.traceback}</pre>`
            : html`<${Empty}>No traceback.<//>`
        }
      </details>`,
    )}
  </section>`;
}

function Reasons({ vertex, pipeline }) {
  const toLetters = (cause) =>
    address([pipeline, "dead-letters"], { vertex: vertex.name, cause: cause.text });
  const lists = [
    ["Nacked because", vertex.nack_reasons],
    ["Parked because", vertex.parked.reasons],
    ["Dead letters because", vertex.dead_letter_causes, toLetters],
  ];
  return lists
    .filter(([, causes]) => causes?.length)
    .map(
      ([title, causes, link]) => html`<section key=${title} aria-label=${title}>
        <h3>${title}</h3>
        <${Causes} causes=${causes} link=${link} />
      </section>`,
    );
}

function Chunks({ pipeline, vertex, at }) {
  const slot = Math.floor((instant(at) ?? 0) / 3000);
  const { answer } = useAnswer(
    (signal) => api.chunks(pipeline, vertex.name, signal),
    `${vertex.name} ${slot}`,
  );
  const chunks = answer?.chunks ?? answer ?? [];
  const stages = Object.entries(vertex.latency ?? {});
  if (!stages.length && !chunks.length) return null;
  return html`<section aria-label="Time of a chunk">
    <h3>Time of a chunk</h3>
    ${stages.length > 0 && html`<${Stages} latency=${vertex.latency} />`}
    <${Timeline} chunks=${chunks} />
  </section>`;
}

/** The last lines that user code printed and logged. */
function Logs({ pipeline, vertex, at }) {
  const slot = Math.floor((instant(at) ?? 0) / 3000);
  const { answer } = useAnswer((signal) => api.logs(pipeline, vertex, signal), `${vertex} ${slot}`);
  const entries = answer?.logs ?? [];
  if (!entries.length) return null;
  return html`<section aria-label="Printed and logged">
    <h3>Printed and logged</h3>
    <pre class="logs" tabindex="0">${entries.map(
      (entry) =>
        html`<span class="muted">${clock(entry.time)}</span> ${entry.level} ${entry.message.trimEnd()}${"\n"}`,
    )}</pre>
  </section>`;
}

const ENDS = [
  ["read", "read"],
  ["done", "done"],
  ["written", "written"],
  ["redelivered", "redelivered"],
  ["fallback", "to the fallback sink"],
  ["served", "served"],
  ["dropped", "dropped"],
  ["dead_lettered", "dead letters"],
];

function Totals({ vertex }) {
  const known = ENDS.filter(([field]) => vertex.counts[field] != null);
  return html`<section aria-label="Counts">
    <h3>Counts</h3>
    <table class="totals">
      <thead>
        <tr><th scope="col">messages</th><th scope="col">this run</th><th scope="col">all runs</th></tr>
      </thead>
      <tbody>
        ${known.map(
          ([field, name]) => html`<tr key=${field}>
            <th scope="row">${name}</th>
            <td>${count(vertex.counts[field])}</td>
            <td>${count(vertex.totals[field])}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </section>`;
}
