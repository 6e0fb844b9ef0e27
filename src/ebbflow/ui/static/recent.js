// What is news of a vertex: errors of the last minute, and messages that wait for long. Pure.

import { instant } from "./format.js";

const RECENT = 60000;
const LATE = 5;

/** Whether messages wait longer than the moments that each of them waits; only then it can drain. */
export function isLate(vertex) {
  return (vertex.oldest_waiting_seconds ?? 0) >= LATE;
}

/** How many errors the groups have had that had one in the minute before the state was taken. */
export function countRecent(vertex, at) {
  return vertex.errors
    .filter((group) => instant(at) - instant(group.last) < RECENT)
    .reduce((sum, group) => sum + group.count, 0);
}
