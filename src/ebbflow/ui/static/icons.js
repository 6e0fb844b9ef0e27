// The shapes next to the words. Every condition has its own, so none depends on colour alone.

import { html } from "./dom.js";

const SHAPES = {
  running: html`<circle cx="8" cy="8" r="4.5" fill="currentColor" stroke="none" />`,
  busy: html`<circle cx="8" cy="8" r="5" /><path
      d="M8 3a5 5 0 0 1 0 10z"
      fill="currentColor"
      stroke="none"
    />`,
  waiting: html`<circle cx="8" cy="8" r="5.5" /><path d="M8 5v3.2l2.2 1.3" />`,
  starting: html`<circle cx="8" cy="8" r="5" stroke-dasharray="2.6 2.6" />`,
  restarting: html`<path d="M12.8 8a4.8 4.8 0 1 1-1.5-3.5M12.6 2v3h-3" />`,
  halted: html`<path
      d="M5.5 2.5h5l3 3v5l-3 3h-5l-3-3v-5z"
      fill="currentColor"
      stroke="none"
    /><path d="M5.4 8h5.2" stroke="var(--surface)" stroke-width="2" />`,
  stuck: html`<path d="M8 2 15 14H1z" fill="currentColor" stroke="none" /><path
      d="M8 6.4v3.4M8 11.6v.6"
      stroke="var(--surface)"
      stroke-width="1.6"
    />`,
  paused: html`<path d="M5.5 3.5v9M10.5 3.5v9" stroke-width="2.6" />`,
  exhausted: html`<path d="m3.5 8.5 3 3 6-7" stroke-width="2" />`,
  ended: html`<rect x="4" y="4" width="8" height="8" rx="1" fill="currentColor" stroke="none" />`,
  pressure: html`<path d="M2 4h5M2 8h5M2 12h5M9.5 3v10M13 3v10" />`,
  letter: html`<rect x="2" y="3.5" width="12" height="9" rx="1.5" /><path d="m2.5 4.5 5.5 4.5 5.5-4.5" />`,
  clock: html`<circle cx="8" cy="8" r="5.5" /><path d="M8 5v3.2l2.2 1.3" />`,
  stack: html`<path d="M2.5 5.5 8 3l5.5 2.5L8 8zM2.5 8.2 8 10.7l5.5-2.5M2.5 10.9 8 13.4l5.5-2.5" />`,
  play: html`<path d="M4.5 3v10l8-5z" fill="currentColor" stroke="none" />`,
  close: html`<path d="m4 4 8 8M12 4l-8 8" />`,
  sun: html`<circle cx="8" cy="8" r="3" /><path
      d="M8 1.5v1.6M8 12.9v1.6M1.5 8h1.6M12.9 8h1.6M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M3.4 12.6l1.1-1.1M11.5 4.5l1.1-1.1"
    />`,
  moon: html`<path d="M13 9.6A5.5 5.5 0 0 1 6.4 3 5.5 5.5 0 1 0 13 9.6z" />`,
  auto: html`<circle cx="8" cy="8" r="5.5" /><path d="M8 2.5a5.5 5.5 0 0 1 0 11z" fill="currentColor" stroke="none" />`,
  copy: html`<rect x="5.5" y="5.5" width="8" height="8" rx="1.5" /><path d="M3.5 10.5h-1v-8h8v1" />`,
  download: html`<path d="M8 2.5v7M5 7l3 3 3-3M3 13.5h10" />`,
  replay: html`<path d="M6 4 2.5 7.5 6 11M3 7.5h6.5a3.5 3.5 0 0 1 0 7H8" />`,
  bin: html`<path d="M3 4.5h10M6.5 4.5v-2h3v2M4.5 4.5l.5 9h6l.5-9" />`,
  search: html`<circle cx="7" cy="7" r="4.2" /><path d="m10.2 10.2 3.6 3.6" />`,
  edit: html`<path d="m3 13 .6-2.8 7-7 2.2 2.2-7 7z" />`,
  left: html`<path d="M10 3.5 5.5 8l4.5 4.5" />`,
  right: html`<path d="M6 3.5 10.5 8 6 12.5" />`,
};

/** A 16 by 16 shape. It decorates a word, so it is hidden from screen readers. */
export function Icon({ name, size = 16 }) {
  return html`<svg
    class="icon"
    width=${size}
    height=${size}
    viewBox="0 0 16 16"
    fill="none"
    stroke="currentColor"
    stroke-width="1.6"
    stroke-linecap="round"
    stroke-linejoin="round"
    aria-hidden="true"
    focusable="false"
  >
    ${SHAPES[name] ?? SHAPES.running}
  </svg>`;
}

/** How urgent a condition is: the class of its colour. */
export const TONES = {
  starting: "quiet",
  running: "ok",
  busy: "ok",
  waiting: "warn",
  restarting: "error",
  halted: "error",
  stuck: "error",
  paused: "warn",
  exhausted: "quiet",
  ended: "quiet",
};

/** The condition to show. "busy" without a long call is normal work, so it shows as running. */
export function conditionOf(vertex) {
  return vertex.condition === "busy" && !vertex.in_call ? "running" : vertex.condition;
}

/** The words of a vertex without its condition and its restarts, which are shown anyway. */
export function say(vertex) {
  const isShown = (part) => part === conditionOf(vertex) || part === "running" || /^\d+ restarts$/.test(part);
  return vertex.words
    .split(", ")
    .filter((part) => !isShown(part))
    .join(", ");
}

/** A condition or a phase: shape, word and colour. */
export function Badge({ condition, word = condition }) {
  return html`<span class="badge ${TONES[condition] ?? "quiet"}">
    <${Icon} name=${condition} size="14" />${word}
  </span>`;
}
