// The filter for dead letters. Its fields are part of the address.

import { html, useEffect, useRef, useState } from "../dom.js";
import { Icon } from "../icons.js";
import { escapeField } from "../parts.js";

const MORE = [
  ["cause", "Fails like"],
  ["reason", "Reason contains"],
  ["id", "Message id"],
  ["key", "Key"],
  ["header", "Header (name or name=value)"],
];
const TIMES = [
  ["since", "Died since"],
  ["until", "Died until"],
];
const FIELDS = ["vertex", "text", "error", ...MORE.map(([name]) => name), "since", "until"];
const PATIENCE = 300;

/** The filter for the server: only fields that are set, times in UTC. */
export function toFilter(fields) {
  const set = FIELDS.filter((name) => fields[name]);
  return Object.fromEntries(
    set.map((name) => [name, name in Object.fromEntries(TIMES) ? utc(fields[name]) : fields[name]]),
  );
}

function utc(local) {
  const time = new Date(local);
  return Number.isNaN(time.getTime()) ? local : time.toISOString();
}

export function FilterBar({ fields, vertices, onChange }) {
  const extra = [...MORE, ...TIMES].some(([name]) => fields[name]);
  const set = (name, value) => onChange({ ...fields, [name]: value });
  return html`<form class="filters" role="search" aria-label="Dead letters" onSubmit=${(event) => event.preventDefault()}>
    <label class="searching">
      <span class="label">Value contains</span>
      <span class="field">
        <${Icon} name="search" />
        <${Typed} id="search" type="search" value=${fields.text} onValue=${(value) => set("text", value)} placeholder="Text in the value" />
        <kbd aria-hidden="true">/</kbd>
      </span>
    </label>
    <label>
      <span class="label">Error contains</span>
      <${Typed} value=${fields.error} onValue=${(value) => set("error", value)} placeholder="KeyError" />
    </label>
    <label>
      <span class="label">Vertex</span>
      <select value=${fields.vertex ?? ""} onChange=${(event) => set("vertex", event.target.value)}>
        <option value="">All</option>
        ${vertices.map(
          (vertex) => html`<option key=${vertex.name} value=${vertex.name}>
            ${vertex.name}${vertex.dead_letters ? ` (${vertex.dead_letters.toLocaleString("en-US")})` : ""}
          </option>`,
        )}
      </select>
    </label>
    <details class="more" open=${extra || undefined}>
      <summary>More filters</summary>
      <div>
        ${MORE.map(
          ([name, label]) => html`<label key=${name}>
            <span class="label">${label}</span>
            <${Typed} value=${fields[name]} onValue=${(value) => set(name, value)} />
          </label>`,
        )}
        ${TIMES.map(
          ([name, label]) => html`<label key=${name}>
            <span class="label">${label}</span>
            <input type="datetime-local" step="1" value=${fields[name] ?? ""} onChange=${(event) => set(name, event.target.value)} />
          </label>`,
        )}
      </div>
    </details>
    <button type="button" class="quiet clear" disabled=${!FIELDS.some((name) => fields[name])} onClick=${() => onChange({ order: fields.order })}>
      Clear
    </button>
  </form>`;
}

/** A field that reports its value when typing pauses, so that not every keystroke starts a search. */
function Typed({ value = "", onValue, type = "text", ...rest }) {
  const [text, setText] = useState(value);
  const timer = useRef();
  useEffect(() => setText(value), [value]);
  const change = (typed, patience) => {
    setText(typed);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onValue(typed), patience);
  };
  return html`<input
    type=${type}
    value=${text}
    onInput=${(event) => change(event.target.value, PATIENCE)}
    onKeyDown=${(event) => escapeField(event, () => change("", 0))}
    autocomplete="off"
    spellcheck=${false}
    ...${rest}
  />`;
}
