// The live state of one pipeline: status events, samples for charts, and whether the server is
// reachable. Views subscribe; the last status stays visible while the server is down.

import * as api from "./api.js";

const RETRY = [1000, 2000, 3000, 5000];
const SILENCE = 8000;
const KEEP = 3600 * 1000;
const STEP = 2000;
const OWN_CLOCK = 3000;

export class Live {
  constructor(pipeline) {
    this.pipeline = pipeline;
    this.state = {
      status: null,
      samples: [],
      connection: "connecting",
      lostAt: null,
      error: null,
      skew: 0,
    };
    this.listeners = new Set();
    this.attempts = 0;
  }

  start() {
    this.connect();
    this.watch = setInterval(() => this.checkSilence(), 1000);
    this.loadHistory();
    return this;
  }

  stop() {
    this.stopped = true;
    this.source?.close();
    clearTimeout(this.timer);
    clearInterval(this.watch);
    this.listeners.clear();
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  set(change) {
    this.state = { ...this.state, ...change };
    for (const listener of this.listeners) listener(this.state);
  }

  connect() {
    this.source?.close();
    this.lastEventAt = Date.now();
    this.source = new EventSource(`${api.root(this.pipeline)}/events`);
    this.source.addEventListener("status", (event) => this.receive(JSON.parse(event.data)));
    this.source.addEventListener("problem", (event) => this.receiveProblem(JSON.parse(event.data)));
    this.source.onerror = () => this.lose();
  }

  receive(status) {
    const back = this.state.connection === "lost";
    this.attempts = 0;
    this.lastEventAt = Date.now();
    this.set({
      status,
      samples: extend(this.state.samples, status),
      connection: "live",
      lostAt: null,
      error: null,
      skew: measureSkew(status),
    });
    if (back) this.loadHistory();
  }

  /** The server of the web UI answers, but cannot read the status: NATS may be down. */
  receiveProblem({ error, next_step: nextStep }) {
    this.lastEventAt = Date.now();
    const lostAt = this.state.lostAt ?? Date.now();
    this.set({ connection: "lost", lostAt, error: new api.ApiError(503, error, nextStep) });
  }

  /** Treats an open connection without events as lost. */
  checkSilence() {
    const isOpen = this.source.readyState === EventSource.OPEN;
    if (isOpen && Date.now() - this.lastEventAt > SILENCE) this.lose();
  }

  lose() {
    if (this.stopped) return;
    this.source.close();
    const wait = RETRY[Math.min(this.attempts++, RETRY.length - 1)];
    const lostAt = this.state.lostAt ?? Date.now();
    this.set({ connection: "lost", lostAt });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.connect(), wait);
    this.findReason();
  }

  /** An event source does not report why it failed, but a plain request does. */
  async findReason() {
    try {
      await api.status(this.pipeline);
    } catch (error) {
      if (!this.stopped && this.state.connection === "lost") this.set({ error });
    }
  }

  async loadHistory() {
    const body = await api.history(this.pipeline).catch(() => null);
    if (!body || this.stopped) return;
    const past = (body.samples ?? body).map(withTime);
    const last = past.at(-1)?.time ?? 0;
    const own = this.state.samples.filter((sample) => sample.time >= last + STEP);
    this.set({ samples: [...past, ...own] });
  }
}

/** How far the server's clock is ahead. Small differences are the latency of the event. */
function measureSkew(status) {
  if (status.phase === "ended" || status.answers === false) return 0;
  const ahead = Date.parse(status.at) - Date.now();
  return Math.abs(ahead) > OWN_CLOCK ? ahead : 0;
}

function withTime(sample) {
  return { time: Date.parse(sample.at), vertices: sample.vertices };
}

/** Appends the numbers of a status at the interval of stored samples, and drops the oldest. */
function extend(samples, status) {
  const time = Date.parse(status.at);
  if (!time || time < (samples.at(-1)?.time ?? 0) + STEP) return samples;
  const vertices = Object.fromEntries(status.vertices.map((vertex) => [vertex.name, take(vertex)]));
  const first = samples.findIndex((sample) => sample.time > time - KEEP);
  return [...samples.slice(Math.max(first, 0)), { time, vertices }];
}

function take(vertex) {
  return {
    read: vertex.totals.read,
    written: vertex.totals.written,
    redelivered: vertex.totals.redelivered,
    dead_lettered: vertex.totals.dead_lettered,
    pending: vertex.pending,
    parked: vertex.parked.messages,
    dead_letters: vertex.dead_letters,
    exact: vertex.pending_exact && vertex.parked.exact,
  };
}
