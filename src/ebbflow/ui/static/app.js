// The web UI: its bar, the view below it, and the keys that work in all views.

import { html, render, useEffect, useMemo, useState } from "./dom.js";
import { clock, count, duration, instant } from "./format.js";
import { Icon } from "./icons.js";
import { Live } from "./live.js";
import { Empty, Failure, isForView, NotFound, Notices, useNow } from "./parts.js";
import { address, go, useRoute } from "./route.js";
import { Letters } from "./views/letters.js";
import { Overview } from "./views/overview.js";
import { PauseButton } from "./views/pausing.js";
import { Phase, Pipelines } from "./views/pipelines.js";
import { Spec } from "./views/spec.js";
import { Trace } from "./views/trace.js";

function App() {
  const route = useRoute();
  const [pipeline] = route.parts;
  useKeys(route);
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    ${pipeline ? html`<${Pipeline} key=${pipeline} pipeline=${pipeline} route=${route} />` : html`<${Bar} /><${Pipelines} />`}
    <${Notices} />`;
}

function skip(event) {
  event.preventDefault();
  document.querySelector("main")?.focus();
}

/** "/" focuses the search of the view, or opens the trace if the view has none. */
function useKeys(route) {
  useEffect(() => {
    const press = (event) => {
      if (event.key !== "/" || !isForView(event)) return;
      event.preventDefault();
      const search = document.getElementById("search");
      if (search) search.focus();
      else if (route.parts[0]) {
        go([route.parts[0], "trace"]);
        setTimeout(() => document.getElementById("search")?.focus(), 50);
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [route]);
}

function useLive(pipeline) {
  const live = useMemo(() => new Live(pipeline), [pipeline]);
  const [state, setState] = useState(live.state);
  useEffect(() => {
    live.subscribe(setState);
    live.start();
    return () => live.stop();
  }, [live]);
  return state;
}

function Pipeline({ pipeline, route }) {
  const live = useLive(pipeline);
  const now = useNow(live.skew);
  const { status } = live;
  useEffect(() => {
    const errors = status?.problems.filter((problem) => problem.level === "error").length;
    document.title = `${errors ? `(${errors}) ` : ""}${pipeline} · Ebbflow`;
  }, [pipeline, status]);
  return html`<${Bar} pipeline=${pipeline} status=${status} live=${live} now=${now} view=${findView(route.parts, status)} />
    <${Lost} live=${live} now=${now} />
    <main id="main" tabindex="-1" class=${live.connection === "lost" ? "stale" : ""}>
      <h1 class="visually-hidden">${pipeline}</h1>
      <${View} pipeline=${pipeline} live=${live} route=${route} now=${now} />
    </main>`;
}

/** The name of the view at an address, or null if the address is unknown. */
function findView([, view = "overview", item, ...rest], status) {
  if (rest.length) return null;
  switch (view) {
    case "vertices":
      return !item || !status || status.vertices.some((vertex) => vertex.name === item) ? "overview" : null;
    case "dead-letters":
      return !item || /^[1-9]\d*$/.test(item) ? view : null;
    case "trace":
      return view;
    default:
      return ["overview", "spec"].includes(view) && !item ? view : null;
  }
}

function describeUnknown([pipeline, view, item, ...rest]) {
  if (view === "vertices" && !rest.length) return `${pipeline} has no vertex ${item}`;
  return `this web UI has no view at ${[pipeline, view, item, ...rest].filter(Boolean).join("/")}`;
}

function listViews(pipeline) {
  return [
    ["Overview", address([pipeline])],
    ["Dead letters", address([pipeline, "dead-letters"])],
    ["Trace", address([pipeline, "trace"])],
    ["Spec", address([pipeline, "spec"])],
  ];
}

function View({ pipeline, live, route, now }) {
  const { status } = live;
  const view = findView(route.parts, status);
  const item = route.parts[2];
  if (!view)
    return html`<${NotFound}
      what=${describeUnknown(route.parts)}
      links=${[...listViews(pipeline), ["all pipelines", "#/"]]}
    />`;
  if (view === "dead-letters")
    return html`<${Letters} pipeline=${pipeline} status=${status} route=${route} now=${now} />`;
  if (view === "trace") return html`<${Trace} pipeline=${pipeline} id=${item} now=${now} />`;
  if (view === "spec") return html`<${Spec} pipeline=${pipeline} />`;
  if (!status && live.error?.status === 404)
    return html`<${NotFound} what=${live.error.message} links=${[["all pipelines", "#/"]]} />`;
  if (!status && live.error) return html`<${Failure} error=${live.error} />`;
  if (!status) return html`<${Empty}>Reading the status of ${pipeline} …<//>`;
  return html`<${Overview} pipeline=${pipeline} live=${live} vertex=${item} now=${now} />`;
}

function Bar({ pipeline, status, live, now, view }) {
  return html`<header class="bar">
    <a class="brand" href="#/" aria-label="Ebbflow, all pipelines">
      <img src="static/icon.svg" alt="" width="22" height="22" /><span>Ebbflow</span>
    </a>
    ${
      pipeline &&
      html`<span class="place"><b>${pipeline}</b>${status && html`<${Phase} phase=${status.phase} ended=${status.ended} />`}</span>
      <${Tabs} pipeline=${pipeline} status=${status} view=${view} />
      <span class="grow"></span>
      <${Facts} status=${status} now=${now} />
      <${Heart} live=${live} />
      ${status && html`<${PauseButton} pipeline=${pipeline} paused=${status.phase === "paused"} phase=${status.phase} />`}`
    }
    ${!pipeline && html`<span class="grow"></span>`}
    <${Scheme} />
  </header>`;
}

function Tabs({ pipeline, status, view }) {
  const letters = status?.vertices.reduce((sum, vertex) => sum + vertex.dead_letters, 0);
  const isCurrent = (name) => view === name.toLowerCase().replace(" ", "-");
  return html`<nav aria-label="Views">
    ${listViews(pipeline).map(
      ([name, href]) => html`<a key=${name} href=${href} aria-current=${isCurrent(name) ? "page" : undefined}>
        ${name}${letters && name === "Dead letters" ? html` <span class="count number">${count(letters)}</span>` : ""}
      </a>`,
    )}
  </nav>`;
}

function Facts({ status, now }) {
  if (!status?.began) return null;
  const end = status.phase === "ended" ? instant(status.at) : now;
  const spark = status.links?.spark_ui;
  return html`<span class="facts-line muted number">
    ${spark && status.phase !== "ended" && html`<a href=${spark} target="_blank" rel="noreferrer">Spark UI</a>`}
    <span title=${`process ${status.pid} on ${status.host}, since ${clock(status.began, now)}`}>
      ${status.phase === "ended" ? "ran" : "up"} ${duration(Math.max(0, (end - instant(status.began)) / 1000))}
    </span>
  </span>`;
}

/** Shows whether the data is live, as a word and a shape in a fixed place. */
function Heart({ live }) {
  const words = { live: "live", lost: "reconnecting", connecting: "connecting" };
  const old = live.status && live.status.answers === false;
  return html`<span class="heart ${old ? "lost" : live.connection}" role="status">
    <${Icon} name=${live.connection === "live" && !old ? "running" : "starting"} size="12" />${old ? "run is lost" : words[live.connection]}
  </span>`;
}

function Lost({ live, now }) {
  const isSaidBelow = !live.status && live.error?.status;
  if (live.connection !== "lost" || isSaidBelow) return null;
  const words = live.error && live.error.status ? live.error.message : "The server does not answer.";
  return html`<p class="lost-line" role="alert">
    <${Icon} name="stuck" />
    <span>
      <b>${words}</b>${" "}
      ${live.status && `This is the status at ${clock(live.status.at, now)}. `}
      ${live.error?.nextStep && live.error.status ? live.error.nextStep : "The web UI reconnects when it is back."}
    </span>
  </p>`;
}

const SCHEMES = { auto: ["auto", "System colours"], light: ["sun", "Light"], dark: ["moon", "Dark"] };

function Scheme() {
  const [scheme, setScheme] = useState(document.documentElement.dataset.scheme ?? "auto");
  const names = Object.keys(SCHEMES);
  const turn = () => {
    const next = names[(names.indexOf(scheme) + 1) % names.length];
    setScheme(next);
    if (next === "auto") delete document.documentElement.dataset.scheme;
    else document.documentElement.dataset.scheme = next;
    try {
      localStorage.setItem("ebbflow-scheme", next);
    } catch {
      // storage is disabled: the choice lasts until the tab is closed
    }
  };
  const [icon, name] = SCHEMES[scheme];
  return html`<button type="button" class="quiet square" onClick=${turn} aria-label=${`Colours: ${name}. Change`} title=${name}>
    <${Icon} name=${icon} />
  </button>`;
}

render(html`<${App} />`, document.getElementById("app"));
