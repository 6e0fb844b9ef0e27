// Formats numbers, durations and times for people. Pure functions.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
});

/** A count in full, with separators: 12,345. */
export function count(value) {
  return value == null ? "–" : whole.format(value);
}

const UNITS = [
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** A count in at most five characters: 9,999, 12.3k, 100k. */
export function brief(value) {
  if (value == null) return "–";
  if (Math.abs(value) < 1e4) return whole.format(value);
  const [size, letter] = UNITS.find(([size]) => Math.abs(value) >= size * 0.99995);
  const scaled = value / size;
  return (Math.abs(scaled) >= 99.95 ? whole : tenths).format(scaled) + letter;
}

/** A count in at most four characters, for places with little room: 999, 1.2k, 30k. */
export function tiny(value) {
  if (value == null || value < 1e3) return brief(value);
  const [size, letter] = UNITS.find(([size]) => value >= size * 0.9995);
  return (value / size >= 9.95 ? whole : tenths).format(value / size) + letter;
}

/** A rate per second: 0.4, 12.3, 1,204, 56.1k. */
export function rate(value) {
  if (value == null) return "–";
  if (value === 0) return "0";
  return value < 100 ? tenths.format(value) : brief(value);
}

/** A rate in at most four characters: 0.4, 12.3, 1.2k, 30k. */
export function tinyRate(value) {
  return value < 100 ? rate(value) : tiny(value);
}

const PAIRS = [
  [86400, "d", 3600, "h"],
  [3600, "h", 60, "min"],
  [60, "min", 1, "s"],
];

/** Seconds in the unit that fits: 3.1 ms, 2.4 s, 4 min 10 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 0.001) return `${whole.format(seconds * 1e6)} µs`;
  if (seconds < 0.1) return `${tenths.format(seconds * 1e3)} ms`;
  if (seconds < 1) return `${whole.format(seconds * 1e3)} ms`;
  if (seconds < 10) return `${tenths.format(seconds)} s`;
  if (seconds < 59.5) return `${whole.format(seconds)} s`;
  for (const [large, largeName, small, smallName] of PAIRS) {
    const rounded = Math.round(seconds / small) * small;
    if (rounded < large) continue;
    const rest = (rounded % large) / small;
    const head = `${Math.floor(rounded / large)} ${largeName}`;
    return rest ? `${head} ${rest} ${smallName}` : head;
  }
  return "–";
}

/** Milliseconds since the epoch of a time from the server, or null. */
export function instant(text) {
  return text == null ? null : Date.parse(text);
}

/** Wall clock, with the day in front if it is not today: 18:07:12, Nov 3 18:07:12. */
export function clock(text, now = Date.now()) {
  const time = instant(text);
  if (time == null || Number.isNaN(time)) return "–";
  const date = new Date(time);
  const hours = date.toLocaleTimeString("en-GB");
  if (date.toDateString() === new Date(now).toDateString()) return hours;
  const day = date.toLocaleDateString("en-US", { month: "short", day: "numeric" });
  return `${day} ${hours}`;
}

/** Date, wall clock and time zone: Nov 3 18:07:12 UTC+1; with the year unless it is this year. */
export function stamp(text, now = Date.now()) {
  const time = instant(text);
  if (time == null || Number.isNaN(time)) return "–";
  const date = new Date(time);
  const year = date.getFullYear() === new Date(now).getFullYear() ? undefined : "numeric";
  const day = date.toLocaleDateString("en-US", { month: "short", day: "numeric", year });
  return `${day} ${date.toLocaleTimeString("en-GB")} ${zone(date)}`;
}

/** The time zone of the browser on a date: UTC, UTC+1, UTC-3:30. */
function zone(date) {
  const ahead = -date.getTimezoneOffset();
  if (ahead === 0) return "UTC";
  const minutes = Math.abs(ahead) % 60;
  const hours = Math.floor(Math.abs(ahead) / 60);
  return `UTC${ahead > 0 ? "+" : "-"}${hours}${minutes ? `:${String(minutes).padStart(2, "0")}` : ""}`;
}

/** How long ago, or in how long: 12 s ago, in 4 min. */
export function distance(text, now) {
  const time = instant(text);
  if (time == null) return "–";
  const seconds = (time - now) / 1000;
  if (Math.abs(seconds) < 1) return "now";
  const words = coarse(Math.round(Math.abs(seconds)));
  return seconds > 0 ? `in ${words}` : `${words} ago`;
}

/** Whole seconds below a minute, whole minutes below an hour. */
function coarse(seconds) {
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3570 ? `${Math.round(seconds / 60)} min` : duration(seconds);
}

/** When the next of some messages is due: next in 4 min, or due now, if its time has passed. */
export function due(text, now, withClock = false) {
  if (instant(text) <= now) return "due now";
  return withClock ? `next due ${clock(text, now)}, ${distance(text, now)}` : `next ${distance(text, now)}`;
}

/** Why a message died or was redelivered: reason and error as one text without repetition. */
export function why({ reason, error }) {
  if (!error || error === reason) return reason;
  return !reason || error.includes(reason) ? error : `${reason}: ${error}`;
}

/** "1 message", "2 messages". */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}
