// Replay or purge of many letters: first how many it would be, then the deed.

import * as api from "../api.js";
import { html, useState } from "../dom.js";
import { count, plural } from "../format.js";
import { Dialog, Failure, notify, useAnswer } from "../parts.js";

export function BulkDialog({ action, pipeline, filter, numbers, onClose, onDone }) {
  const isReplay = action === "replay";
  const which = numbers ? { numbers } : { filter };
  const call = isReplay ? api.replay : api.purge;
  const trial = useAnswer(() => call(pipeline, { ...which, dry_run: true }), action);
  const [rate, setRate] = useState("");
  const [typed, setTyped] = useState("");
  const [work, setWork] = useState({ busy: false, error: null });
  const matching = trial.answer ? affected(trial.answer) : null;
  const act = async () => {
    setWork({ busy: true, error: null });
    try {
      const answer = await call(pipeline, { ...which, ...(isReplay && rate ? { rate: Number(rate) } : {}) });
      notify(summarise(isReplay, answer), { tone: stays(answer) ? "error" : "ok" });
      onDone();
    } catch (error) {
      setWork({ busy: false, error });
    }
  };
  const sure = isReplay || typed === String(matching);
  return html`<${Dialog} title=${isReplay ? "Replay dead letters" : "Purge dead letters"} onClose=${onClose}>
    <form method="dialog" onSubmit=${(event) => (event.preventDefault(), sure && matching && act())}>
      <p class="matching" aria-live="polite">
        ${trial.error
          ? html`<${Failure} error=${trial.error} />`
          : matching == null
            ? "Counting …"
            : html`<b class="number">${plural(matching, "letter")}</b> ${matching === 1 ? "is" : "are"}
                ${" "}${numbers ? "selected" : Object.keys(filter).length ? "matched by this filter" : "stored"}.`}
      </p>
      ${!numbers && html`<${Conditions} filter=${filter} />`}
      ${isReplay
        ? html`<p>Each message goes back to its vertex as on its first delivery; its letter is deleted when that is stored.</p>
            <label>
              <span class="label">At most so many a second (empty: as fast as it goes)</span>
              <input type="number" min="1" inputmode="numeric" value=${rate} onInput=${(event) => setRate(event.target.value)} />
            </label>`
        : html`<p>Purged letters are gone for good. <b>Export them first</b> if you may want them again.</p>
            <label>
              <span class="label">Type ${matching ?? "the number"} to confirm</span>
              <input inputmode="numeric" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} />
            </label>`}
      ${work.error && html`<${Failure} error=${work.error} />`}
      <footer>
        <button type="button" onClick=${onClose}>Cancel</button>
        <button type="submit" class=${isReplay ? "primary" : "danger filled"} disabled=${!matching || !sure || work.busy}>
          ${work.busy ? "Working …" : `${isReplay ? "Replay" : "Purge"} ${matching == null ? "" : count(matching)}`}
        </button>
      </footer>
    </form>
  <//>`;
}

function Conditions({ filter }) {
  const entries = Object.entries(filter);
  if (!entries.length) return null;
  return html`<ul class="conditions">
    ${entries.map(([name, value]) => html`<li key=${name}>${name}: <b>${value}</b></li>`)}
  </ul>`;
}

function affected(answer) {
  return answer.sent ?? answer.matched ?? answer.count ?? answer.replayed ?? answer.purged ?? 0;
}

function stays(answer) {
  return Object.values(answer.stayed ?? {}).reduce((sum, numbers) => sum + (numbers.length ?? numbers), 0);
}

function summarise(isReplay, answer) {
  const number = isReplay ? (answer.sent ?? answer.replayed ?? 0) : (answer.purged ?? 0);
  const words = isReplay ? `${plural(number, "message")} sent back.` : `${plural(number, "letter")} purged.`;
  const left = stays(answer);
  if (!left) return words;
  return `${words} ${plural(left, "letter")} stay: ${Object.keys(answer.stayed)[0]}`;
}
