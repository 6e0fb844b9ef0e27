// The dead letters: frequent causes, search in pages, open one, replay, export or purge many.

import * as api from "../api.js";
import { html, useEffect, useRef, useState } from "../dom.js";
import { count, plural, stamp } from "../format.js";
import { Icon } from "../icons.js";
import { Causes, Empty, Failure, isForView, useAnswer } from "../parts.js";
import { address, amend, go } from "../route.js";
import { BulkDialog } from "./bulk.js";
import { FilterBar, toFilter } from "./filters.js";
import { LetterPanel } from "./letter.js";

const PAGE = 50;

export function Letters({ pipeline, status, route, now }) {
  const { fields, parts } = route;
  const number = parts[2] ? Number(parts[2]) : null;
  const filter = toFilter(fields);
  const key = JSON.stringify(filter);
  const [dialog, setDialog] = useState(null);
  const [chosen, setChosen] = useState(() => new Set());
  const order = fields.order === "oldest" ? "oldest" : "newest";
  const pages = usePages(pipeline, filter, order);
  const stored = status?.vertices.reduce((sum, vertex) => sum + vertex.dead_letters, 0);
  useEffect(() => setChosen(new Set()), [key]);
  const change = (fields) => amend([pipeline, "dead-letters"], fields);
  const addressOf = (number) => address([pipeline, "dead-letters", String(number)], fields);
  const open = (number) => go([pipeline, "dead-letters", String(number)], fields);
  useWalking(number, open);
  const close = () => go([pipeline, "dead-letters"], fields);
  const finish = () => {
    setDialog(null);
    setChosen(new Set());
    pages.reload();
  };
  return html`<div class="letters ${number ? "with-panel" : ""}">
    <div class="main">
      <${FilterBar} fields=${fields} vertices=${status?.vertices ?? []} onChange=${change} />
      <${MostFrequent} pipeline=${pipeline} fields=${fields} now=${now} />
      <section class="card" aria-label="Dead letters">
        <${Tools}
          pipeline=${pipeline}
          filter=${filter}
          chosen=${chosen}
          pages=${pages}
          stored=${stored}
          onAct=${setDialog}
        >
          <${Order} order=${order} onOrder=${(order) => change({ ...fields, order })} />
        <//>
        ${
          pages.error
            ? html`<${Failure} error=${pages.error} again=${pages.reload} />`
            : html`<${List}
              pages=${pages}
              chosen=${chosen}
              onChoose=${setChosen}
              opened=${number}
              addressOf=${addressOf}
              onOpen=${open}
              now=${now}
              filtered=${key !== "{}"}
            />`
        }
        <${Pager} pages=${pages} order=${order} />
      </section>
    </div>
    ${
      number &&
      html`<${LetterPanel}
      key=${number}
      pipeline=${pipeline}
      number=${number}
      status=${status}
      now=${now}
      onClose=${close}
      onGone=${() => {
        close();
        pages.reload();
      }}
    />`
    }
    ${
      dialog &&
      html`<${BulkDialog}
      action=${dialog}
      pipeline=${pipeline}
      filter=${filter}
      numbers=${chosen.size ? [...chosen] : null}
      onClose=${() => setDialog(null)}
      onDone=${finish}
    />`
    }
  </div>`;
}

/** Moves between rows with j and k, or up and down, unless the focus is in a field. */
function useWalking(opened, onOpen) {
  const latest = useRef();
  latest.current = { opened, onOpen };
  useEffect(() => {
    const press = (event) => isForView(event) && walk(event, latest.current);
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

const STEPS = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 };

/** Focuses the next row; if a dead letter is open, opens the next one instead. */
function walk(event, { opened, onOpen }) {
  const rows = [...document.querySelectorAll(".list .row")];
  const focused = rows.indexOf(document.activeElement?.closest("tr")?.querySelector(".row"));
  // Arrow keys scroll as usual, unless a row has the focus.
  if (!STEPS[event.key] || (event.key.startsWith("Arrow") && focused < 0)) return;
  const at = focused < 0 ? rows.findIndex((row) => row.textContent === String(opened)) : focused;
  const next = rows[at < 0 ? 0 : at + STEPS[event.key]];
  if (!next) return;
  event.preventDefault();
  next.focus();
  if (opened) onOpen(Number(next.textContent));
}

const FEW = 5;
const COUNT_EVERY = 5000;

/** The most frequent causes by vertex; each one links to its dead letters. */
function MostFrequent({ pipeline, fields, now }) {
  const [all, setAll] = useState(false);
  const slot = Math.floor(now / COUNT_EVERY);
  const { answer } = useAnswer((signal) => api.causes(pipeline, signal), `${pipeline} ${slot}`);
  const causes = answer?.causes ?? [];
  if (!causes.length) return null;
  const shown = all ? causes : causes.slice(0, FEW);
  const isCurrent = (cause) => cause.vertex === fields.vertex && cause.text === fields.cause;
  const link = ({ vertex, text }) =>
    address([pipeline, "dead-letters"], { vertex, cause: text, order: fields.order });
  return html`<section class="card most" aria-label="What fails most">
    <header>
      <h2>What fails most</h2>
      <span class="number muted counted">${plural(answer.total, "dead letter")}</span>
      ${
        causes.length > FEW &&
        html`<button type="button" class="quiet" aria-expanded=${all} onClick=${() => setAll(!all)}>
        ${all ? "Show fewer" : `Show ${causes.length}`}
      </button>`
      }
    </header>
    <${Causes} causes=${[...shown, ...describeRest(answer, shown)]} link=${link} current=${isCurrent} />
  </section>`;
}

/** One line for all hidden causes, so that the counts add up. */
function describeRest({ causes, more, total }, shown) {
  const number = causes.length + (more?.causes ?? 0) - shown.length;
  const rest = total - shown.reduce((sum, cause) => sum + cause.count, 0);
  return number > 0 ? [{ text: `and ${plural(number, "more cause")}`, count: rest, rest: true }] : [];
}

const ORDERS = [
  ["newest", "Newest first"],
  ["oldest", "Oldest first"],
];

function Order({ order, onOrder }) {
  return html`<select
    class="order"
    aria-label="Order"
    value=${order}
    onChange=${(event) => onOrder(event.target.value === "newest" ? "" : event.target.value)}
  >
    ${ORDERS.map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}
  </select>`;
}

/** The current page, and functions to change it. Continues a search until the page is full. */
function usePages(pipeline, filter, order) {
  const key = JSON.stringify([filter, order]);
  const [state, setState] = useState({ letters: [], next: null, total: null, busy: true, error: null });
  const [starts, setStarts] = useState([null]);
  const [round, setRound] = useState(0);
  const shownKey = useRef(key);
  const current = shownKey.current === key ? starts : [null];
  useEffect(() => {
    if (shownKey.current !== key) {
      shownKey.current = key;
      setStarts([null]);
    }
  }, [key]);
  const after = current.at(-1);
  useEffect(() => {
    const control = new AbortController();
    setState((state) => ({ ...state, busy: true }));
    const load = async () => {
      let found = [];
      let next = after;
      let total = null;
      do {
        const page = await api.letters(
          pipeline,
          { ...filter, order, after: next, limit: PAGE - found.length },
          control.signal,
        );
        found = [...found, ...page.letters];
        next = page.next;
        total = page.total ?? total;
        if (next != null && found.length < PAGE) {
          setState({ letters: found, next: null, total, busy: true, error: null, reached: next });
        }
      } while (next != null && found.length < PAGE);
      setState({ letters: found, next, total, busy: false, error: null });
    };
    load().catch((error) => {
      if (error.name !== "AbortError") setState((state) => ({ ...state, busy: false, error }));
    });
    return () => control.abort();
  }, [pipeline, key, after, round]);
  return {
    ...state,
    page: current.length,
    hasBefore: current.length > 1,
    forward: () => setStarts([...current, state.next]),
    back: () => setStarts(current.slice(0, -1)),
    reload: () => setRound((round) => round + 1),
  };
}

function Tools({ pipeline, filter, chosen, pages, stored, onAct, children }) {
  const some = chosen.size > 0;
  const what = some ? `${count(chosen.size)} selected` : Object.keys(filter).length ? "matching" : "all";
  const seen = useRef(stored);
  useEffect(() => {
    if (!pages.busy) seen.current = stored;
  }, [pages.busy, pages.letters]);
  const fresh = stored != null && seen.current != null && stored !== seen.current;
  return html`<header class="tools">
    <h2>Dead letters</h2>
    <span class="number muted total">${describe(pages, filter, stored)}</span>
    <button
      type="button"
      class="quiet ${fresh ? "fresh" : ""}"
      title=${fresh ? "The number of dead letters has changed" : "Read the list again"}
      onClick=${pages.reload}
      aria-label="Refresh"
    >
      <${Icon} name="restarting" /><span class="text">Refresh</span>
    </button>
    ${children}
    <span class="grow"></span>
    <button type="button" onClick=${() => onAct("replay")} disabled=${!pages.letters.length}>
      <${Icon} name="replay" />Replay ${what}…
    </button>
    <a class="button" href=${api.exportAddress(pipeline, filter)} download hidden=${some}>
      <${Icon} name="download" />Export
    </a>
    <button type="button" class="danger" onClick=${() => onAct("purge")} disabled=${!pages.letters.length}>
      <${Icon} name="bin" />Purge ${what}…
    </button>
  </header>`;
}

function describe(pages, filter, stored) {
  if (!Object.keys(filter).length) return `${count(pages.total ?? stored ?? pages.letters.length)} stored`;
  if (pages.busy && pages.reached) return `searched to number ${count(pages.reached)} …`;
  if (pages.total != null) return `${count(pages.total)} match`;
  if (pages.next == null && pages.page === 1) return `${count(pages.letters.length)} match`;
  return "";
}

function List({ pages, chosen, onChoose, opened, addressOf, onOpen, now, filtered }) {
  const { letters } = pages;
  if (!letters.length && !pages.busy) {
    return html`<${Empty}>
      ${filtered ? "No dead letter matches. Remove a filter to see more." : "There are no dead letters."}
    <//>`;
  }
  const toggle = (number) => {
    const next = new Set(chosen);
    if (!next.delete(number)) next.add(number);
    onChoose(next);
  };
  const all = letters.length > 0 && letters.every((letter) => chosen.has(letter.number));
  const toggleAll = () => {
    const next = new Set(chosen);
    for (const letter of letters) all ? next.delete(letter.number) : next.add(letter.number);
    onChoose(next);
  };
  return html`<div class="scroll" aria-busy=${pages.busy}>
    <table class="list">
      <thead>
        <tr>
          <th scope="col">
            <input type="checkbox" aria-label="Select this page" checked=${all} onChange=${toggleAll} />
          </th>
          <th scope="col">number</th>
          <th scope="col">died</th>
          <th scope="col">vertex</th>
          <th scope="col">message</th>
          <th scope="col">deliveries</th>
          <th scope="col">why</th>
        </tr>
      </thead>
      <tbody>
        ${letters.map(
          (letter) => html`<tr
            key=${letter.number}
            class=${opened === letter.number ? "selected" : ""}
            onClick=${(event) => isForRow(event) && onOpen(letter.number)}
          >
            <td>
              <input
                type="checkbox"
                aria-label=${`Select dead letter ${letter.number}`}
                checked=${chosen.has(letter.number)}
                onChange=${() => toggle(letter.number)}
              />
            </td>
            <td class="number">
              <a class="row" href=${addressOf(letter.number)}>${letter.number}</a>
            </td>
            <td class="number"><${Died} at=${letter.last_seen} now=${now} /></td>
            <td>${letter.vertex}</td>
            <td class="id" title=${letter.id}>${letter.id}</td>
            <td class="number">${letter.deliveries}</td>
            <td class="words" title=${letter.why}>${letter.why}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** When it died, with date and zone; narrow windows hide the zone. */
function Died({ at, now }) {
  const text = stamp(at, now);
  const end = text.lastIndexOf(" ");
  return html`<time dateTime=${at} title=${at}>${text.slice(0, end)}<span class="zone">${text.slice(end)}</span></time>`;
}

/** Whether a click opens the row: not on a control, and not after selecting text. */
function isForRow(event) {
  const isOnControl = event.target.closest("a, input, td:first-child");
  return !isOnControl && getSelection().isCollapsed && !event.ctrlKey && !event.metaKey;
}

function Pager({ pages, order }) {
  const { letters } = pages;
  if (!letters.length) return null;
  return html`<footer class="pager">
    <button type="button" onClick=${pages.back} disabled=${!pages.hasBefore || pages.busy}>
      <${Icon} name="left" />${order === "newest" ? "Newer" : "Older"}
    </button>
    <span class="number muted">
      page ${pages.page}: numbers ${count(letters[0].number)} to ${count(letters.at(-1).number)}
    </span>
    <button type="button" onClick=${pages.forward} disabled=${pages.next == null || pages.busy}>
      ${order === "newest" ? "Older" : "Newer"}<${Icon} name="right" />
    </button>
  </footer>`;
}
