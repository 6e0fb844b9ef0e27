// The dead letters: search them page by page, open one, replay, export or purge many.

import * as api from "../api.js";
import { html, useEffect, useRef, useState } from "../dom.js";
import { clock, count } from "../format.js";
import { Icon } from "../icons.js";
import { Empty, Failure } from "../parts.js";
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
  const pages = usePages(pipeline, filter, key);
  const stored = status?.vertices.reduce((sum, vertex) => sum + vertex.dead_letters, 0);
  useEffect(() => setChosen(new Set()), [key]);
  const change = (fields) => amend([pipeline, "dead-letters"], fields);
  const open = (number) => go([pipeline, "dead-letters", String(number)], fields);
  const close = () => go([pipeline, "dead-letters"], fields);
  const finish = () => {
    setDialog(null);
    setChosen(new Set());
    pages.reload();
  };
  return html`<div class="letters ${number ? "beside" : ""}">
    <div class="main">
      <${FilterBar} fields=${fields} vertices=${status?.vertices ?? []} onChange=${change} />
      <section class="card" aria-label="Dead letters">
        <${Tools}
          pipeline=${pipeline}
          filter=${filter}
          chosen=${chosen}
          pages=${pages}
          stored=${stored}
          onAct=${setDialog}
        />
        ${
          pages.error
            ? html`<${Failure} error=${pages.error} again=${pages.reload} />`
            : html`<${List}
              pages=${pages}
              chosen=${chosen}
              onChoose=${setChosen}
              opened=${number}
              onOpen=${open}
              now=${now}
              filtered=${key !== "{}"}
            />`
        }
        <${Pager} pages=${pages} />
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

/** The page shown, and ways to its neighbours. A search that ends early is taken further. */
function usePages(pipeline, filter, key) {
  const [state, setState] = useState({ letters: [], next: null, total: null, busy: true, error: null });
  const [starts, setStarts] = useState([0]);
  const [round, setRound] = useState(0);
  const shownKey = useRef(key);
  const current = shownKey.current === key ? starts : [0];
  useEffect(() => {
    if (shownKey.current !== key) {
      shownKey.current = key;
      setStarts([0]);
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
          { ...filter, after: next, limit: PAGE - found.length },
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

function Tools({ pipeline, filter, chosen, pages, stored, onAct }) {
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
    >
      <${Icon} name="restarting" />Refresh
    </button>
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
  if (pages.busy && pages.reached) return `searched up to number ${count(pages.reached)} …`;
  if (pages.total != null) return `${count(pages.total)} match`;
  if (pages.next == null && pages.page === 1) return `${count(pages.letters.length)} match`;
  return "";
}

function List({ pages, chosen, onChoose, opened, onOpen, now, filtered }) {
  const { letters } = pages;
  if (!letters.length && !pages.busy) {
    return html`<${Empty}>
      ${filtered ? "No dead letter matches. Take a filter away to see more." : "There are no dead letters."}
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
  return html`<div class="scroll" aria-busy=${pages.busy} onKeyDown=${walk}>
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
          (letter) => html`<tr key=${letter.number} class=${opened === letter.number ? "selected" : ""}>
            <td>
              <input
                type="checkbox"
                aria-label=${`Select letter ${letter.number}`}
                checked=${chosen.has(letter.number)}
                onChange=${() => toggle(letter.number)}
              />
            </td>
            <td class="number">
              <button type="button" class="link row" onClick=${() => onOpen(letter.number)}>${letter.number}</button>
            </td>
            <td class="number">${clock(letter.last_seen, now)}</td>
            <td>${letter.vertex}</td>
            <td class="id" title=${letter.id}>${letter.id}</td>
            <td class="number">${letter.deliveries}</td>
            <td class="words" title=${letter.error ?? letter.reason}>
              ${letter.error ?? letter.reason}
            </td>
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/** Arrow keys walk from letter to letter; Enter opens, as on any button. */
function walk(event) {
  const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
  if (!step || !event.target.classList.contains("row")) return;
  const rows = [...event.currentTarget.querySelectorAll("button.row")];
  rows[rows.indexOf(event.target) + step]?.focus();
  event.preventDefault();
}

function Pager({ pages }) {
  const { letters } = pages;
  if (!letters.length) return null;
  return html`<footer class="pager">
    <button type="button" onClick=${pages.back} disabled=${!pages.hasBefore || pages.busy}>
      <${Icon} name="left" />Older
    </button>
    <span class="number muted">
      page ${pages.page}: numbers ${count(letters[0].number)} to ${count(letters.at(-1).number)}
    </span>
    <button type="button" onClick=${pages.forward} disabled=${pages.next == null || pages.busy}>
      Newer<${Icon} name="right" />
    </button>
  </footer>`;
}
