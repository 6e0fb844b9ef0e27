// A form for the value, keys and headers of a dead letter; only changes are sent.

import { html, useEffect, useRef, useState } from "../dom.js";
import { Icon } from "../icons.js";
import { Failure } from "../parts.js";
import { asJson, compact, isJson, readHeaders, readKeys, writeHeaders } from "../payload.js";

export function EditForm({ letter, onSend, onCancel }) {
  const isBinary = letter.value?.base64 != null;
  const json = asJson(letter.value);
  const original = {
    value: isBinary ? letter.value.base64 : (json ?? letter.value.text),
    keys: (letter.keys ?? []).join("\n"),
    headers: writeHeaders(letter.headers),
  };
  const [draft, setDraft] = useState(original);
  const [work, setWork] = useState({ busy: false, error: null });
  const first = useRef();
  useEffect(() => first.current.focus(), []);
  const set = (field) => (event) => setDraft({ ...draft, [field]: event.target.value });
  const broken = json != null && !isJson(draft.value);
  const send = async (event) => {
    event.preventDefault();
    setWork({ busy: true, error: null });
    try {
      await onSend(findChanges(letter, original, draft, { isBinary, wasJson: json != null }));
    } catch (error) {
      setWork({ busy: false, error });
    }
  };
  return html`<form class="edit" onSubmit=${send}>
    <label>
      <span class="label">Value${isBinary ? ", in base64" : ""}</span>
      <textarea ref=${first} rows="12" spellcheck=${false} value=${draft.value} onInput=${set("value")} aria-describedby="value-note"></textarea>
    </label>
    <p id="value-note" class="note ${broken ? "warn" : "muted"}" aria-live="polite">
      ${broken ? "This is no longer valid JSON." : json != null ? "Valid JSON; it is sent without the line breaks." : ""}
    </p>
    <label>
      <span class="label">Keys, one per line</span>
      <textarea rows="2" spellcheck=${false} value=${draft.keys} onInput=${set("keys")}></textarea>
    </label>
    <label>
      <span class="label">Headers, as name: value</span>
      <textarea rows="3" spellcheck=${false} value=${draft.headers} onInput=${set("headers")}></textarea>
    </label>
    ${work.error && html`<${Failure} error=${work.error} />`}
    <footer class="buttons">
      <button type="submit" class="primary" disabled=${work.busy}>
        <${Icon} name="replay" />${work.busy ? "Sending …" : "Replay edited"}
      </button>
      <button type="button" onClick=${onCancel}>Cancel</button>
    </footer>
  </form>`;
}

function findChanges(letter, original, draft, { isBinary, wasJson }) {
  const changes = {};
  if (draft.value !== original.value) {
    // JSON was indented for reading, so it is sent without spaces, as most programs write it.
    const text = wasJson && isJson(draft.value) ? compact(draft.value) : draft.value;
    changes.value = isBinary ? { base64: draft.value.trim() } : { text };
  }
  if (draft.keys !== original.keys) changes.keys = readKeys(draft.keys);
  if (draft.headers !== original.headers) changes.headers = readHeaders(draft.headers);
  return changes;
}
