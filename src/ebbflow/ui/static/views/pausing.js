// Pause and resume a vertex or the whole pipeline.

import * as api from "../api.js";
import { html, useState } from "../dom.js";
import { Icon } from "../icons.js";
import { notify } from "../parts.js";

export function PauseButton({ pipeline, vertex, paused, phase }) {
  const [busy, setBusy] = useState(false);
  const name = vertex ?? pipeline;
  const act = async () => {
    setBusy(true);
    try {
      await (paused ? api.resume : api.pause)(pipeline, vertex);
      notify(paused ? `${name} resumes.` : `${name} settles its messages in flight, then pauses.`);
    } catch (error) {
      notify(`${error.message} ${error.nextStep ?? ""}`, { tone: "error" });
    } finally {
      setBusy(false);
    }
  };
  if (phase === "ended" && !paused) return null;
  return html`<button type="button" onClick=${act} disabled=${busy} aria-label=${`${paused ? "Resume" : "Pause"} ${name}`}>
    <${Icon} name=${paused ? "play" : "paused"} /><span class="text">${paused ? "Resume" : "Pause"}</span>
  </button>`;
}
