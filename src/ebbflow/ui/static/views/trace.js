// The way of one message: every vertex, delivery and outcome, and where it is now.

import * as api from "../api.js";
import { html, useEffect, useRef, useState } from "../dom.js";
import { Icon } from "../icons.js";
import { Empty, Failure, Moment, useAnswer } from "../parts.js";
import { address, go } from "../route.js";

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
          <input id="search" type="search" value=${text} onInput=${(event) => setText(event.target.value)} placeholder="in-12" autocomplete="off" spellcheck=${false} />
          <kbd>/</kbd>
        </span>
      </label>
      <button type="submit" class="primary">Find</button>
    </form>
    ${id ? html`<${Way} key=${id} pipeline=${pipeline} id=${id} now=${now} />` : html`<${Hint} />`}
  </div>`;
}

function Hint() {
  return html`<${Empty}>
    An id such as in-12 shows every vertex, delivery and outcome of that message, and where it is now.
  <//>`;
}

const AGAIN = 2000;

function Way({ pipeline, id, now }) {
  const { answer, error, again } = useAnswer((signal) => api.trace(pipeline, id, signal), id);
  const moving = useRef(false);
  moving.current = answer != null && !isOver(answer);
  useEffect(() => {
    const timer = setInterval(() => moving.current && again(), AGAIN);
    return () => clearInterval(timer);
  }, []);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (!answer) return html`<${Empty}>Looking for ${id} …<//>`;
  const steps = answer.steps ?? [];
  return html`<section class="card" aria-label=${`Way of ${id}`}>
    <header><h2>${id}</h2></header>
    <${Places} answer=${answer} pipeline=${pipeline} now=${now} />
    ${steps.length
      ? html`<ol class="way">
          ${steps.map((step, at) => html`<${Step} key=${at} step=${step} pipeline=${pipeline} now=${now} />`)}
        </ol>`
      : html`<${Empty}>No vertex has settled it yet.<//>`}
  </section>`;
}

function isOver(answer) {
  return !(answer.places ?? answer.now ?? []).length;
}

function Places({ answer, now }) {
  return html`<p class="where">${answer.where ?? answer.words ?? ""}</p>`;
}

const TONES = { done: "ok", "dead letter": "error", redelivered: "warn", fallback: "warn", dropped: "quiet" };
const SHAPES = { done: "exhausted", "dead letter": "letter", redelivered: "restarting", fallback: "replay", dropped: "close" };

function Step({ step, pipeline, now }) {
  const outcome = (step.outcome ?? "").replaceAll("_", " ");
  const number = step.letter ?? step.dead_letter;
  return html`<li class=${TONES[outcome] ?? "quiet"}>
    <${Icon} name=${SHAPES[outcome] ?? "running"} />
    <a class="vertex" href=${address([pipeline, "vertices", step.vertex])}>${step.vertex}</a>
    <span class="outcome">${outcome}${number ? html` <a href=${address([pipeline, "dead-letters", String(number)])}>letter ${number}</a>` : ""}</span>
    <span class="muted">delivery ${step.delivery ?? step.deliveries ?? 1}</span>
    <span class="id">${step.id}</span>
    <${Moment} at=${step.at ?? step.ended} now=${now} />
    <span class="reason">${step.error ?? step.reason ?? ""}</span>
  </li>`;
}
