// Replays or purges many dead letters, after a dry run that counts them.

import * as api from "../api.js";
import { html, useRef, useState } from "../dom.js";
import { count, plural } from "../format.js";
import { Dialog, Failure, notify, useAnswer } from "../parts.js";

const IDLE = { busy: false, error: null, job: null, progress: null };

export function BulkDialog({ action, pipeline, filter, numbers, onClose, onDone }) {
  const isReplay = action === "replay";
  const call = isReplay ? api.replay : api.purge;
  const choose = (extra) => (numbers ? { numbers } : { filter: { ...filter, ...extra } });
  const trial = useAnswer(async () => {
    const answer = await call(pipeline, { ...choose(), dry_run: true });
    return api.finish(pipeline, answer, () => {});
  }, action);
  const [rate, setRate] = useState("");
  const [typed, setTyped] = useState("");
  const [work, setWork] = useState(IDLE);
  const isShown = useRef(true);
  const matching = trial.answer ? affected(isReplay, trial.answer) : null;
  const isConfirmed = isReplay || typed.replaceAll(/\D/g, "") === String(matching);
  const close = () => {
    isShown.current = false;
    if (work.busy) notify("It continues; the number of dead letters shows its progress.");
    onClose();
  };
  const act = async (event) => {
    event.preventDefault();
    if (!isConfirmed || !matching || work.busy) return;
    setWork({ ...IDLE, busy: true });
    try {
      // Dead letters that arrived after the count are left alone.
      const limit = trial.answer.up_to == null ? {} : { up_to: trial.answer.up_to };
      const speed = isReplay && rate ? { rate: Number(rate) } : {};
      const begun = await call(pipeline, { ...choose(limit), ...speed });
      const answer = await api.finish(pipeline, begun, ({ job, progress }) =>
        setWork({ ...IDLE, busy: true, job, progress }),
      );
      notify(summarise(isReplay, answer), { tone: countStaying(answer) ? "error" : "ok" });
      if (isShown.current) onDone();
    } catch (error) {
      setWork({ ...IDLE, error });
    }
  };
  return html`<${Dialog} title=${isReplay ? "Replay dead letters" : "Purge dead letters"} onClose=${close}>
    <form onSubmit=${act}>
      <p class="matching" aria-live="polite">
        <${Matching} trial=${trial} matching=${matching} numbers=${numbers} filter=${filter} />
      </p>
      ${!numbers && html`<${Conditions} filter=${filter} />`}
      ${
        isReplay
          ? html`<${ReplayFields} rate=${rate} onRate=${setRate} />`
          : html`<${PurgeFields} matching=${matching} typed=${typed} onTyped=${setTyped} />`
      }
      ${work.error && html`<${Failure} error=${work.error} />`}
      <footer>
        <span class="grow number muted" aria-live="polite">${describeProgress(work.progress, matching)}</span>
        ${
          work.job != null
            ? html`<button type="button" onClick=${() => api.stopJob(pipeline, work.job)}>Stop</button>`
            : html`<button type="button" onClick=${close}>Cancel</button>`
        }
        <button
          type="submit"
          class=${isReplay ? "primary" : "danger filled"}
          disabled=${!matching || !isConfirmed || work.busy}
        >
          ${work.busy ? "Working …" : `${isReplay ? "Replay" : "Purge"} ${matching == null ? "" : count(matching)}`}
        </button>
      </footer>
    </form>
  <//>`;
}

function Matching({ trial, matching, numbers, filter }) {
  if (trial.error) return html`<${Failure} error=${trial.error} again=${trial.again} />`;
  if (matching == null) return "Counting …";
  const how = numbers ? "selected" : Object.keys(filter).length ? "matched by this filter" : "stored";
  return html`<b class="number">${plural(matching, "dead letter")}</b> ${matching === 1 ? "is" : "are"} ${how}.`;
}

function Conditions({ filter }) {
  const entries = Object.entries(filter);
  if (!entries.length) return null;
  return html`<ul class="conditions">
    ${entries.map(([name, value]) => html`<li key=${name}>${name}: <b>${value}</b></li>`)}
  </ul>`;
}

function ReplayFields({ rate, onRate }) {
  return html`<p>
      Each message goes back to its vertex as on its first delivery. Its dead letter is deleted when the
      message is stored there.
    </p>
    <label>
      <span class="label">Most messages per second (empty: no limit)</span>
      <input
        autofocus
        type="number"
        min="1"
        inputmode="numeric"
        value=${rate}
        onInput=${(event) => onRate(event.target.value)}
      />
    </label>`;
}

function PurgeFields({ matching, typed, onTyped }) {
  return html`<p>Purged dead letters cannot be restored. <b>Export them first</b> if you may need them.</p>
    <label>
      <span class="label">Type ${matching ?? "the number"} to confirm</span>
      <input
        autofocus
        inputmode="numeric"
        autocomplete="off"
        value=${typed}
        onInput=${(event) => onTyped(event.target.value)}
      />
    </label>`;
}

function affected(isReplay, answer) {
  return (isReplay ? answer.sent : answer.purged) ?? 0;
}

function describeProgress(progress, matching) {
  const number = progress?.sent ?? progress?.purged;
  return number == null ? "" : `${count(number)} of ${count(matching)}`;
}

function countStaying(answer) {
  return Object.values(answer.stayed ?? {}).reduce((sum, numbers) => sum + numbers.length, 0);
}

function summarise(isReplay, answer) {
  const number = affected(isReplay, answer);
  const words = isReplay ? `${plural(number, "message")} sent back.` : `${plural(number, "dead letter")} purged.`;
  const left = countStaying(answer);
  if (!left) return words;
  return `${words} ${plural(left, "dead letter stays", "dead letters stay")}: ${Object.keys(answer.stayed)[0]}`;
}
