// Recent trouble of a vertex: errors of the last minute, and messages that wait long. Pure functions.

import { instant } from "./format.js";

const RECENT = 60000;
const LATE = 5;

/** Whether messages wait longer than normal; only then is there a backlog to drain. */
export function isLate(vertex) {
  return (vertex.oldest_waiting_seconds ?? 0) >= LATE;
}

/** The errors in groups that had an error in the minute before the time of the status. */
export function countRecent(vertex, at) {
  return vertex.errors
    .filter((group) => instant(at) - instant(group.last) < RECENT)
    .reduce((sum, group) => sum + group.count, 0);
}
