// Errors of user code that are news: those of the last minute. Pure.

import { instant } from "./format.js";

const RECENT = 60000;

/** How many errors the groups have had that had one in the minute before the state was taken. */
export function countRecent(vertex, at) {
  return vertex.errors
    .filter((group) => instant(at) - instant(group.last) < RECENT)
    .reduce((sum, group) => sum + group.count, 0);
}
