// The normalised spec of the run; the server hides secrets.

import * as api from "../api.js";
import { html } from "../dom.js";
import { Copy, Empty, Failure, useAnswer } from "../parts.js";

export function Spec({ pipeline }) {
  const { answer, error, again } = useAnswer((signal) => api.spec(pipeline, signal), pipeline);
  if (error) return html`<${Failure} error=${error} again=${again} />`;
  if (answer == null) return html`<${Empty}>Reading the spec …<//>`;
  return html`<section class="card spec" aria-label="Spec">
    <header><h2>Spec</h2><span class="muted">as it runs; secrets are hidden</span><span class="grow"></span><${Copy} text=${answer} /></header>
    <pre tabindex="0">${answer.split("\n").map((line) => html`<${Line} line=${line} />`)}</pre>
  </section>`;
}

function Line({ line }) {
  const match = /^(\s*(?:- )?)([\w./-]+:)(\s.*)?$/.exec(line);
  if (line.trim().startsWith("#")) return html`<span class="comment">${line}\n</span>`;
  if (!match) return `${line}\n`;
  return html`${match[1]}<span class="name">${match[2]}</span>${match[3] ?? ""}${"\n"}`;
}
