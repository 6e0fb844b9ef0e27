// One dead letter: why it died, its payload and history, and replaying it, edited or as it is.

import * as api from "../api.js";
import { html, useState } from "../dom.js";
import { count, plural } from "../format.js";
import { Icon } from "../icons.js";
import { Copy, Failure, Moment, notify, useAnswer, usePanel } from "../parts.js";
import { asHex, asJson, asText, bytes } from "../payload.js";
import { address } from "../route.js";
import { EditForm } from "./edit.js";

export function LetterPanel({ pipeline, number, now, onClose, onGone }) {
  const [editing, setEditing] = useState(false);
  const ref = usePanel(() => (editing ? stopEditing() : onClose()));
  const {
    answer: letter,
    error,
    again,
  } = useAnswer((signal) => api.letter(pipeline, number, signal), number);
  const stopEditing = () => {
    setEditing(false);
    ref.current.focus({ preventScroll: true });
  };
  const send = async (changes) => {
    const begun = await api.replay(pipeline, { numbers: [number], ...changes });
    const answer = await api.finish(pipeline, begun, () => {});
    const reasons = Object.keys(answer.stayed ?? {});
    if (reasons.length) throw new api.ApiError(409, `Dead letter ${number} stays: ${reasons[0]}`);
    const link = address([pipeline, "trace", letter.id]);
    notify(`${letter.id} was sent back to ${letter.vertex}.`, { link, label: "Trace it" });
    onGone();
  };
  return html`<aside class="panel letter" aria-label=${`Dead letter ${number}`} tabindex="-1" ref=${ref}>
    <header>
      <div>
        <h2>Dead letter ${number}</h2>
        ${letter && html`<p class="muted">from <a href=${address([pipeline, "vertices", letter.vertex])}>${letter.vertex}</a></p>`}
      </div>
      <button type="button" class="quiet square" aria-label="Close" onClick=${onClose}>
        <${Icon} name="close" />
      </button>
    </header>
    ${error && html`<${Failure} error=${error} again=${again} />`}
    ${
      letter &&
      (editing
        ? html`<${EditForm} letter=${letter} onSend=${send} onCancel=${stopEditing} />`
        : html`<${Contents} letter=${letter} pipeline=${pipeline} now=${now} onEdit=${() => setEditing(true)} onSend=${send} />`)
    }
  </aside>`;
}

function Contents({ letter, pipeline, now, onEdit, onSend }) {
  return html`<${Actions} letter=${letter} onEdit=${onEdit} onSend=${onSend} />
    <p class="callout error"><b>${letter.reason}</b>${letter.error && letter.error !== letter.reason ? html`<br />${letter.error}` : ""}</p>
    <dl class="pairs">
      <dt>Message</dt>
      <dd><a href=${address([pipeline, "trace", letter.id])}>${letter.id}</a></dd>
      <dt>Deliveries</dt>
      <dd class="number">${count(letter.deliveries)}${letter.replays ? `, replayed ${plural(letter.replays, "time")} before` : ""}</dd>
      <dt>First seen</dt>
      <dd><${Moment} at=${letter.first_seen} now=${now} /></dd>
      <dt>Died</dt>
      <dd><${Moment} at=${letter.last_seen} now=${now} /></dd>
      ${letter.event_time && html`<dt>Event time</dt><dd><${Moment} at=${letter.event_time} now=${now} /></dd>`}
      ${letter.keys?.length > 0 && html`<dt>Keys</dt><dd>${letter.keys.join(", ")}</dd>`}
    </dl>
    <${Payload} letter=${letter} />
    <${Pairs} title="Headers" entries=${Object.entries(letter.headers ?? {})} />
    <${Pairs}
      title="Metadata"
      entries=${Object.entries(letter.metadata ?? {}).flatMap(([group, values]) =>
        Object.entries(values).map(([name, value]) => [
          `${group}.${name}`,
          typeof value === "string" ? value : (value.text ?? value.base64),
        ]),
      )}
    />
    ${
      letter.traceback &&
      html`<section aria-label="Traceback">
      <h3>Traceback</h3>
      <pre class="traceback" tabindex="0">${letter.traceback}</pre>
    </section>`
    }
    <${Past} history=${letter.history ?? []} now=${now} />`;
}

function Actions({ letter, onEdit, onSend }) {
  const [work, setWork] = useState({ busy: false, error: null });
  const replay = async () => {
    setWork({ busy: true, error: null });
    await onSend({}).catch((error) => setWork({ busy: false, error }));
  };
  return html`<div class="buttons">
      <button type="button" class="primary" onClick=${replay} disabled=${work.busy || letter.unread}>
        <${Icon} name="replay" />Replay
      </button>
      <button type="button" onClick=${onEdit} disabled=${letter.unread}><${Icon} name="edit" />Edit and replay</button>
      <${Copy} text=${asText(letter.value)} label="Copy value" />
    </div>
    ${letter.unread && html`<p class="muted">The source could not read it as a message, so it cannot be replayed.</p>`}
    ${work.error && html`<${Failure} error=${work.error} />`}`;
}

const FORMS = [
  ["JSON", asJson],
  ["Text", asText],
  ["Hex", asHex],
];

function Payload({ letter }) {
  const forms = FORMS.filter(([name, show]) => name !== "JSON" || show(letter.value) != null);
  const first = letter.value?.base64 != null ? "Hex" : forms[0][0];
  const [form, setForm] = useState(first);
  const size = bytes(letter.value).length;
  const [, show] = forms.find(([name]) => name === form) ?? forms[0];
  const text = show(letter.value);
  return html`<section class="payload" aria-label="Value">
    <header>
      <h3>Value</h3>
      <span class="muted number">${plural(size, "byte")}${letter.size > size ? ` of ${count(letter.size)}; the rest was cut` : ""}</span>
      <div role="group" aria-label="Shown as">
        ${forms.map(
          ([
            name,
          ]) => html`<button key=${name} type="button" class="quiet" aria-pressed=${form === name} onClick=${() => setForm(name)}>
            ${name}
          </button>`,
        )}
      </div>
    </header>
    <pre tabindex="0">${text === "" ? "(empty)" : text}</pre>
  </section>`;
}

function Pairs({ title, entries }) {
  if (!entries.length) return null;
  return html`<section aria-label=${title}>
    <h3>${title}</h3>
    <dl class="pairs code">
      ${entries.map(([name, value]) => html`<dt key=${`${name}-name`}>${name}</dt><dd key=${name}>${value}</dd>`)}
    </dl>
  </section>`;
}

/** Earlier deaths of the message. Each was a separate dead letter that was replayed. */
function Past({ history, now }) {
  if (!history.length) return null;
  return html`<section aria-label="History">
    <h3>History</h3>
    <ol class="past">
      ${history.map(
        (death) => html`<li key=${death.number}>
          <${Moment} at=${death.died} now=${now} only="clock" />
          <span>
            died as dead letter ${death.number} after ${plural(death.deliveries, "delivery", "deliveries")}${
              death.replayed
                ? html`, replayed <${Moment} at=${death.replayed} now=${now} only="clock" />`
                : ""
            }
          </span>
          <span class="muted">${death.reason}</span>
        </li>`,
      )}
    </ol>
  </section>`;
}
