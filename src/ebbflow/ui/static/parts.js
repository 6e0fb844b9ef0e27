// Small parts that several views share: live times, dialogs, notices, errors.

import { html, useEffect, useRef, useState } from "./dom.js";
import { clock, distance, stamp } from "./format.js";
import { Icon } from "./icons.js";

/** The current time by the server's clock, updated every second. */
export function useNow(skew = 0) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now + skew;
}

/** Asks the server when the key changes: {answer, error, busy, again}. Keeps an answer until the next one. */
export function useAnswer(ask, key) {
  const [state, setState] = useState({ answer: null, error: null, busy: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    setState((state) => ({ ...state, busy: true }));
    ask(control.signal).then(
      (answer) => setState({ answer, error: null, busy: false, key }),
      (error) => {
        if (error.name !== "AbortError") setState({ answer: null, error, busy: false, key });
      },
    );
    return () => control.abort();
  }, [key, round]);
  return { ...state, again: () => setRound((round) => round + 1) };
}

/** A time with date and zone, followed by its distance; the title has the server's form. */
export function Moment({ at, now, only }) {
  if (!at) return html`<span class="muted">–</span>`;
  if (only) return html`<time dateTime=${at} title=${at}>${(only === "clock" ? clock : distance)(at, now)}</time>`;
  return html`<time dateTime=${at} title=${at}>
    ${stamp(at, now)}${" "}<span class="muted">${distance(at, now)}</span>
  </time>`;
}

export function Failure({ error, again }) {
  return html`<div class="failure" role="alert">
    <p><strong>${error.message}</strong></p>
    ${error.nextStep && html`<p>${error.nextStep}</p>`}
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;
}

/** An unknown address, with links to known ones. */
export function NotFound({ what, links }) {
  return html`<div class="failure" role="alert">
    <p><strong>Not found: ${what}.</strong></p>
    <p>Go to ${links.map(
      ([name, href], at) => html`${at ? ", " : ""}<a key=${href} href=${href}>${name}</a>`,
    )}.</p>
  </div>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="quiet" onClick=${copy}>
    <${Icon} name="copy" />${done ? "Copied" : label}
  </button>`;
}

/** A panel that takes the focus, returns it when it closes, and handles Esc. */
export function usePanel(onEscape) {
  const ref = useRef();
  const latest = useRef();
  latest.current = onEscape;
  useEffect(() => {
    const back = document.activeElement;
    ref.current.focus({ preventScroll: true });
    const press = (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) latest.current();
    };
    addEventListener("keydown", press);
    const panel = ref.current;
    return () => {
      removeEventListener("keydown", press);
      const focused = document.activeElement;
      // Focus that has moved elsewhere in the meantime, such as to the next row, stays there.
      const isFree = focused === document.body || panel.contains(focused);
      if (isFree && back?.isConnected) back.focus({ preventScroll: true });
    };
  }, []);
  return ref;
}

/** Esc in a field clears it, and when it is empty, leaves it. No other handler sees this Esc. */
export function escapeField(event, clear) {
  if (event.key !== "Escape") return;
  event.preventDefault();
  event.stopPropagation();
  if (event.target.value) clear();
  else event.target.blur();
}

/** Whether a key is for the view: without modifiers, and not typed in a field or a dialog. */
export function isForView(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  return !event.target.closest?.("input:not([type=checkbox]), textarea, select, dialog");
}

/** A modal dialog. Esc and the close button cancel; the focus returns to where it was. */
export function Dialog({ title, onClose, children }) {
  const ref = useRef();
  useEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog
    ref=${ref}
    aria-labelledby="dialog-title"
    onCancel=${(event) => {
      event.preventDefault();
      onClose();
    }}
  >
    <header>
      <h2 id="dialog-title">${title}</h2>
      <button type="button" class="quiet square" aria-label="Close" onClick=${onClose}>
        <${Icon} name="close" />
      </button>
    </header>
    ${children}
  </dialog>`;
}

let announce = () => {};

/** Shows a notice at the bottom for some seconds; screen readers announce it. */
export function notify(text, { tone = "ok", link, label } = {}) {
  announce({ text, tone, link, label, id: Math.random() });
}

export function Notices() {
  const [notices, setNotices] = useState([]);
  useEffect(() => {
    announce = (notice) => {
      setNotices((notices) => [...notices.slice(-2), notice]);
      setTimeout(
        () => setNotices((notices) => notices.filter((other) => other.id !== notice.id)),
        notice.tone === "error" ? 12000 : 7000,
      );
    };
  }, []);
  return html`<div class="notices" role="status" aria-live="polite">
    ${notices.map(
      (notice) => html`<p key=${notice.id} class="notice ${notice.tone}">
        ${notice.text} ${notice.link && html`<a href=${notice.link}>${notice.label}</a>`}
      </p>`,
    )}
  </div>`;
}

/** Causes with bars behind their counts, the most frequent first. The rest has no link. */
export function Causes({ causes, link, current }) {
  const most = Math.max(1, ...causes.map((cause) => cause.count));
  return html`<ul class="causes">
    ${causes.map(
      (cause) => html`<li key=${`${cause.vertex} ${cause.text}`} class=${cause.rest ? "rest" : ""}>
        <span class="share" style=${`width:${(cause.count / most) * 100}%`}></span>
        <span class="number">${cause.count.toLocaleString("en-US")}</span>
        <span class="text" title=${cause.text}>
          ${cause.vertex && html`<span class="muted">${cause.vertex}</span>${" "}`}
          ${
            link && !cause.rest
              ? html`<a href=${link(cause)} aria-current=${current?.(cause) ? "true" : undefined}>${cause.text}</a>`
              : cause.text
          }
        </span>
      </li>`,
    )}
  </ul>`;
}
