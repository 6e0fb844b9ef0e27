// Problems with their next steps, or one quiet line if there are none.

import { html, useState } from "../dom.js";
import { plural } from "../format.js";
import { Icon } from "../icons.js";
import { countRecent } from "../recent.js";
import { address } from "../route.js";

const FEW = 3;

export function Problems({ status, pipeline }) {
  const [all, setAll] = useState(false);
  const problems = [...status.problems].sort((left, right) => rank(left) - rank(right));
  if (!problems.length) return html`<${Well} status=${status} />`;
  const shown = all ? problems : problems.slice(0, FEW);
  const more = problems.length - shown.length;
  return html`<ul class="problems" aria-label="Problems" role="list">
    ${shown.map(
      (problem) => html`<${Problem}
        key=${`${problem.level} ${problem.vertex} ${problem.next_step}`}
        problem=${problem}
        pipeline=${pipeline}
      />`,
    )}
    ${
      (more > 0 || all) &&
      html`<li class="rest">
      <button type="button" class="quiet" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${more > 0 ? `${plural(more, "more problem")}` : "Show fewer"}
      </button>
    </li>`
    }
  </ul>`;
}

function Problem({ problem, pipeline }) {
  const { level, vertex, what, next_step: next } = problem;
  return html`<li class=${level === "error" ? "error" : "warn"}>
    <${Icon} name=${level === "error" ? "stuck" : "waiting"} />
    <p class="what">
      <b class="level">${level === "error" ? "Error" : "Warning"}</b>
      ${vertex && html`<a href=${address([pipeline, "vertices", vertex])}>${vertex}</a>`}
      <span>${what}</span>
    </p>
    <p class="next">
      <${Step} text=${next} />
      ${
        vertex &&
        next.includes("ebbflow dlq") &&
        html`${" "}<a href=${address([pipeline, "dead-letters"], { vertex })}>Open them here</a>`
      }
    </p>
  </li>`;
}

/** The next step, with its commands formatted as code. */
function Step({ text }) {
  const parts = text.split(/(ebbflow [a-z][^.:;]*(?:\.\w[^.:;]*)*)/);
  return parts.map((part) => (part.startsWith("ebbflow ") ? html`<code>${part}</code>` : part));
}

function describeRunning(status, number) {
  const failing = status.vertices.filter((vertex) => countRecent(vertex, status.at));
  if (!failing.length) {
    return `No problems: ${plural(number, "vertex is", "vertices are")} running.`;
  }
  const names = failing.map((vertex) => vertex.name).join(", ");
  return `All vertices are running, but user code has raised errors in the last minute: ${names}.`;
}

function rank(problem) {
  return problem.level === "error" ? 0 : 1;
}

function Well({ status }) {
  return html`<p class="well">
    <${Icon} name=${status.phase === "ended" ? "ended" : "exhausted"} />
    ${describe(status)}
  </p>`;
}

function describe(status) {
  const number = status.vertices.length;
  switch (status.phase) {
    case "ended":
      return `The run has ended (${status.ended ?? "stopped"}). No problems.`;
    case "starting":
      return "Starting: the vertices open their code.";
    case "stopping":
      return "Stopping: tasks settle the messages in flight.";
    case "paused":
      return "Paused: tasks take no messages until the pipeline is resumed.";
    default:
      return describeRunning(status, number);
  }
}
