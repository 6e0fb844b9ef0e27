// The list of all pipelines.

import * as api from "../api.js";
import { html, useEffect } from "../dom.js";
import { plural } from "../format.js";
import { Badge } from "../icons.js";
import { Empty, Failure, useAnswer } from "../parts.js";
import { address } from "../route.js";

const LOST = { lost: "stuck", null: "stuck" };
const PHASES = {
  starting: "starting",
  running: "running",
  paused: "paused",
  stopping: "waiting",
  ended: "ended",
};

export function Phase({ phase, ended }) {
  const word = phase === "ended" && ended ? `ended (${ended})` : (phase ?? "unknown");
  return html`<${Badge} condition=${PHASES[phase] ?? LOST[phase] ?? "starting"} word=${word} />`;
}

/** Lists the pipelines; if there is only one, opens it instead. */
export function Pipelines() {
  const { answer, error, again } = useAnswer(api.pipelines, "pipelines");
  const pipelines = answer?.pipelines ?? [];
  const only = pipelines.length === 1 ? pipelines[0].name : null;
  useEffect(() => {
    if (only) location.replace(address([only]));
  }, [only]);
  useEffect(() => {
    const timer = setInterval(again, 3000);
    return () => clearInterval(timer);
  }, []);
  if (error) return html`<main id="main"><${Failure} error=${error} again=${again} /></main>`;
  if (!answer || only) return html`<main id="main"><${Empty}>Looking for pipelines …<//></main>`;
  return html`<main id="main" tabindex="-1">
    <h1 class="visually-hidden">Pipelines</h1>
    <section class="card" aria-label="Pipelines">
      <header><h2>Pipelines</h2><span class="muted number">${pipelines.length}</span></header>
      ${pipelines.length === 0 && html`<${Empty}>There are no pipelines on this NATS server yet. Start one: ebbflow run<//>`}
      <ul class="pipelines">
        ${pipelines.map(
          (pipeline) => html`<li key=${pipeline.name}>
            <a href=${address([pipeline.name])}>${pipeline.name}</a>
            <${Phase} phase=${pipeline.answers === false ? "lost" : pipeline.phase} ended=${pipeline.ended} />
            <span class=${pipeline.problems ? "warn" : "muted"}>
              ${pipeline.problems ? plural(pipeline.problems, "problem") : "no problems"}
            </span>
            <span class="number ${pipeline.dead_letters ? "error" : "muted"}">
              ${plural(pipeline.dead_letters ?? 0, "dead letter")}
            </span>
          </li>`,
        )}
      </ul>
    </section>
  </main>`;
}
