// The path of one message: where it is now, and all of its vertices, deliveries and outcomes.

import * as api from "../api.js";
import { html, useEffect, useRef, useState } from "../dom.js";
import { why } from "../format.js";
import { Icon } from "../icons.js";
import { Empty, escapeField, Failure, Moment, useAnswer } from "../parts.js";
import { address, go } from "../route.js";

const AGAIN = 2000;

export function Trace({ pipeline, id, now }) {
  const [text, setText] = useState(id ?? "");
  useEffect(() => setText(id ?? ""), [id]);
  const ask = (event) => {
    event.preventDefault();
    if (text.trim()) go([pipeline, "trace", text.trim()]);
  };
  return html`<div class="trace">
    <form class="filters" role="search" aria-label="Trace" onSubmit=${ask}>
      <label class="searching">
        <span class="label">Id of a message or request</span>
        <span class="field">
          <${Icon} name="search" />
          <input
            id="search"
            type="search"
            value=${text}
            onInput=${(event) => setText(event.target.value)}
            onKeyDown=${(event) => escapeField(event, () => setText(""))}
            placeholder="in-12"
            autocomplete="off"
            spellcheck=${false}
          />
          <kbd aria-hidden="true">/</kbd>
        </span>
      </label>
      <button type="submit" class="primary">Find</button>
    </form>
    ${
      id
        ? html`<${Path} key=${id} pipeline=${pipeline} id=${id} now=${now} />`
        : html`<${Empty}>
          An id such as in-12 shows every vertex, delivery and outcome of that message, and where it is now.
        <//>`
    }
  </div>`;
}

/** Refreshes the trace while the message is in the pipeline. */
function Path({ pipeline, id, now }) {
  const { answer, error, again } = useAnswer((signal) => api.trace(pipeline, id, signal), id);
  const moving = useRef(false);
  moving.current = (answer?.now ?? []).some((place) => place.where !== "dead letter");
  useEffect(() => {
    const timer = setInterval(() => moving.current && again(), AGAIN);
    return () => clearInterval(timer);
  }, []);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!answer) return html`<${Empty}>Looking for ${id} …<//>`;
  return html`<section class="card" aria-label=${`Path of ${id}`}>
    <header><h2>${id}</h2></header>
    <${Places} places=${answer.now ?? []} answer=${answer} pipeline=${pipeline} now=${now} />
    <${Steps} steps=${answer.steps ?? []} pipeline=${pipeline} now=${now} />
    ${(answer.notes ?? []).map((note) => html`<p key=${note} class="remark muted">${note}</p>`)}
  </section>`;
}

function Places({ places, answer, pipeline, now }) {
  if (!places.length) return html`<p class="remark">${describeNowhere(answer)}</p>`;
  return html`<ul class="places" aria-label="Where it is now">
    ${places.map(
      (place, at) => html`<li key=${at} class=${place.where === "dead letter" ? "error" : "warn"}>
        <${Icon} name=${place.where === "dead letter" ? "letter" : "waiting"} />
        <span>
          <b class="id">${place.message}</b> ${place.words ?? `${place.where} at ${place.vertex}`}.
          ${place.due && html` That is <${Moment} at=${place.due} now=${now} only="distance" />.`}
        </span>
        <span class="links">
          <a href=${address([pipeline, "vertices", place.vertex])}>${place.vertex}</a>
          ${
            place.number != null &&
            html`<a href=${address([pipeline, "dead-letters", String(place.number)])}>Dead letter ${place.number}</a>`
          }
        </span>
      </li>`,
    )}
  </ul>`;
}

function describeNowhere(answer) {
  if (answer.steps?.length) return "It is finished: nothing of it is left in the pipeline.";
  return "It is not in the pipeline now: it is finished, or it never arrived.";
}

const SHAPES = {
  done: ["ok", "exhausted"],
  served: ["ok", "exhausted"],
  "on success": ["ok", "exhausted"],
  redelivered: ["warn", "restarting"],
  redeliver: ["warn", "restarting"],
  fallback: ["warn", "replay"],
  "fell back": ["warn", "replay"],
  dropped: ["quiet", "close"],
};

function shape(outcome) {
  return outcome.startsWith("dead") ? ["error", "letter"] : (SHAPES[outcome] ?? ["quiet", "running"]);
}

function Steps({ steps, pipeline, now }) {
  if (!steps.length) return null;
  return html`<ol class="way">
    ${steps.map((step, at) => {
      const outcome = (step.outcome ?? "").replaceAll("_", " ");
      const [tone, icon] = shape(outcome);
      return html`<li key=${at} class=${tone}>
        <${Icon} name=${icon} />
        <a class="vertex" href=${address([pipeline, "vertices", step.vertex])}>${step.vertex}</a>
        <span class="outcome">${outcome}</span>
        <span class="delivery muted">delivery ${step.delivery ?? 1}</span>
        <span class="id">${step.message}</span>
        <${Moment} at=${step.at} now=${now} />
        <span class="reason">
          ${[why(step), describeNext(step)].filter(Boolean).join(" · ")}
          ${step.due && html` · due <${Moment} at=${step.due} now=${now} only="clock" />`}
        </span>
      </li>`;
    })}
  </ol>`;
}

function describeNext(step) {
  const targets = step.sent_to ?? [];
  if (!targets.length) return "";
  const names = targets.map((target) => (typeof target === "string" ? target : (target.vertex ?? target.to)));
  return `sent to ${names.join(", ")}`;
}
