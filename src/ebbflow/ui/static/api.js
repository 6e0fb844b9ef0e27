// All calls to the server. An error becomes an ApiError, which says what to do next.

export class ApiError extends Error {
  constructor(status, error, nextStep) {
    super(error);
    this.status = status;
    this.nextStep = nextStep;
  }
}

const DOWN = "The server does not answer.";
const START = "Start it again: the web UI then reconnects.";

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new ApiError(0, DOWN, START);
  }
  if (!response.ok) throw await explain(response);
  return response;
}

async function explain(response) {
  const body = await response.json().catch(() => ({}));
  const words = body.error ?? `The server answered ${response.status} ${response.statusText}.`;
  return new ApiError(response.status, words, body.next_step);
}

async function get(path, signal) {
  return (await ask(path, { signal })).json();
}

async function post(path, body) {
  // Pages of other sites cannot set this header, so they cannot post.
  const headers = { "Content-Type": "application/json", "X-Ebbflow": "1" };
  const response = await ask(path, { method: "POST", headers, body: JSON.stringify(body) });
  return response.json().catch(() => ({}));
}

const part = encodeURIComponent;

export function root(pipeline) {
  return `api/pipelines/${part(pipeline)}`;
}

/** A filter as a query string, without empty fields. */
export function query(fields) {
  const entries = Object.entries(fields).filter(([, value]) => value != null && value !== "");
  return entries.length ? `?${new URLSearchParams(entries)}` : "";
}

export const pipelines = (signal) => get("api/pipelines", signal);
export const status = (pipeline, signal) => get(`${root(pipeline)}/status`, signal);
export const history = (pipeline, signal) => get(`${root(pipeline)}/history`, signal);
export const chunks = (pipeline, vertex, signal) =>
  get(`${root(pipeline)}/vertices/${part(vertex)}/chunks`, signal);
export const logs = (pipeline, vertex, signal) =>
  get(`${root(pipeline)}/logs${query({ vertex, limit: 50 })}`, signal);
export const letters = (pipeline, filter, signal) =>
  get(`${root(pipeline)}/dead-letters${query(filter)}`, signal);
export const causes = (pipeline, signal) => get(`${root(pipeline)}/dead-letters/counts`, signal);
export const letter = (pipeline, number, signal) => get(`${root(pipeline)}/dead-letters/${number}`, signal);
export const exportAddress = (pipeline, filter) => `${root(pipeline)}/dead-letters/export${query(filter)}`;
export const trace = (pipeline, id, signal) => get(`${root(pipeline)}/trace/${part(id)}`, signal);
export const replay = (pipeline, body) => post(`${root(pipeline)}/dead-letters/replay`, body);
export const purge = (pipeline, body) => post(`${root(pipeline)}/dead-letters/purge`, body);
export const pause = (pipeline, vertex) => post(`${root(pipeline)}/pause`, vertex ? { vertex } : {});
export const resume = (pipeline, vertex) => post(`${root(pipeline)}/resume`, vertex ? { vertex } : {});

const LOOK_AGAIN = 400;

/** Waits for the job of a replay or purge, if there is one; returns the result. */
export async function finish(pipeline, answer, onProgress) {
  while (answer.job != null && !answer.done) {
    onProgress(answer);
    await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN));
    answer = await get(`${root(pipeline)}/dead-letters/jobs/${answer.job}`);
  }
  if (answer.error) throw new ApiError(409, answer.error, answer.next_step);
  return answer.job != null ? answer.result : answer;
}

export const stopJob = (pipeline, job) => post(`${root(pipeline)}/dead-letters/jobs/${job}/stop`, {});

/** The spec as YAML, whether the server sends it plain or inside JSON. */
export async function spec(pipeline, signal) {
  const response = await ask(`${root(pipeline)}/spec`, { signal });
  const text = await response.text();
  const isJson = (response.headers.get("Content-Type") ?? "").includes("json");
  return isJson ? JSON.parse(text).spec : text;
}
