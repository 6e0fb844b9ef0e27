// Charts over time: lines in SVG, with a cursor that follows the mouse and arrow keys.

import { html, useEffect, useMemo, useRef, useState } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 132;
const FRAME = { left: 46, right: 8, top: 8, bottom: 20 };
const POINTS = 240;

/** The width of an element as it changes. */
export function useWidth(initial = 320) {
  const ref = useRef();
  const [width, setWidth] = useState(initial);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/**
 * One chart. series: [{name, tone, values: number|null per time, estimates: boolean per time}],
 * times in milliseconds. The legend shows the newest values, or those under the cursor. Estimates
 * are drawn as dots, and have a ≈ before their number.
 */
export function Chart({ title, times, series, format, range }) {
  const [ref, width] = useWidth();
  const [cursor, setCursor] = useState(null);
  const scale = useMemo(() => makeScale(times, series, width, range), [times, series, width, range]);
  const at = cursor == null ? times.length - 1 : Math.min(cursor, times.length - 1);
  const move = (event) => {
    const x = event.clientX - event.currentTarget.getBoundingClientRect().left;
    setCursor(nearest(times, scale.time(x)));
  };
  const key = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    setCursor(Math.max(0, Math.min(times.length - 1, at + step)));
  };
  const show = (line, at) => `${line.estimates?.[at] ? "≈ " : ""}${format(line.values[at] ?? 0)}`;
  const spoken = series.map((line) => `${line.name} ${show(line, times.length - 1)}`).join(", ");
  return html`<figure class="chart" ref=${ref}>
    <figcaption>
      <h3>${title}</h3>
      <span class="at">${cursor == null ? "" : clock(new Date(times[at]).toISOString())}</span>
    </figcaption>
    <ul class="legend">
      ${series.map(
        (line) => html`<li key=${line.name}>
          <svg width="18" height="8" aria-hidden="true">
            <line x1="0" x2="18" y1="4" y2="4" class="line ${line.tone}" />
          </svg>
          ${line.name} <b class="number">${show(line, at)}</b>
        </li>`,
      )}
      ${
        series.some((line) => line.estimates?.includes(true)) &&
        html`<li>
          <svg width="18" height="8" aria-hidden="true">
            <line x1="0" x2="18" y1="4" y2="4" class="line ${series[0].tone} estimate" />
          </svg>
          estimated
        </li>`
      }
    </ul>
    <svg
      width=${width}
      height=${HEIGHT}
      role="img"
      tabindex="0"
      aria-label="${title}, now: ${spoken}. Arrow keys move through time."
      onPointerMove=${move}
      onPointerLeave=${() => setCursor(null)}
      onBlur=${() => setCursor(null)}
      onKeyDown=${key}
    >
      ${scale.rows.map(
        (value) => html`<g key=${value} class="tick">
          <line x1=${FRAME.left} x2=${width - FRAME.right} y1=${scale.y(value)} y2=${scale.y(value)} />
          <text x=${FRAME.left - 6} y=${scale.y(value) + 3.5} text-anchor="end">${format(value)}</text>
        </g>`,
      )}
      ${scale.columns.map(
        (time) => html`<text key=${time} class="tick" x=${scale.x(time)} y=${HEIGHT - 4} text-anchor="middle">
          ${clock(new Date(time).toISOString()).slice(-8, -3)}
        </text>`,
      )}
      ${series.map(
        (line) => html`<path key=${line.name} class="line ${line.tone}" d=${draw(times, line, scale, false)} />
          <path key=${`${line.name} estimated`} class="line ${line.tone} estimate" d=${draw(times, line, scale, true)} />`,
      )}
      ${
        cursor != null &&
        html`<line class="cursor" x1=${scale.x(times[at])} x2=${scale.x(times[at])} y1=${FRAME.top} y2=${HEIGHT - FRAME.bottom} />`
      }
    </svg>
  </figure>`;
}

function makeScale(times, series, width, range) {
  const last = times.at(-1) ?? Date.now();
  const first = last - range;
  const most = Math.max(...series.flatMap((line) => line.values.map((value) => value ?? 0)), 0);
  const top = ceiling(most);
  const inner = Math.max(1, width - FRAME.left - FRAME.right);
  const tall = HEIGHT - FRAME.top - FRAME.bottom;
  const minutes =
    [1, 2, 5, 10, 15, 30].find((step) => range / (step * 60000) <= Math.max(2, inner / 70)) ?? 30;
  const step = minutes * 60000;
  const columns = [];
  for (let time = Math.ceil(first / step) * step; time <= last; time += step) columns.push(time);
  const x = (time) => FRAME.left + ((time - first) / range) * inner;
  return {
    x,
    y: (value) => FRAME.top + tall * (1 - value / top),
    time: (x) => first + ((x - FRAME.left) / inner) * range,
    rows: [0, top / 2, top],
    columns: columns.filter((time) => x(time) > FRAME.left + 12 && x(time) < width - 18),
    first,
  };
}

/** A round number at or above the largest value, so that the scale does not move all the time. */
function ceiling(value) {
  if (value <= 2) return 2;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 4, 6, 8, 10].find((step) => step * power >= value);
  return step * power;
}

/** The path of a line: either its estimates, each with the segment before it, or the rest. */
function draw(times, { values, estimates }, scale, estimated) {
  const place = (at) => `${scale.x(times[at]).toFixed(1)},${scale.y(values[at]).toFixed(1)}`;
  const isDrawn = (at) => values[at] != null && times[at] >= scale.first;
  let text = "";
  let pen = false;
  for (let at = 0; at < times.length; at++) {
    const isMine = isDrawn(at) && Boolean(estimates?.[at]) === estimated;
    if (isMine && !pen && at > 0 && isDrawn(at - 1)) text += `M${place(at - 1)}L${place(at)}`;
    else if (isMine) text += `${pen ? "L" : "M"}${place(at)}`;
    pen = isMine;
  }
  return text;
}

function nearest(times, time) {
  let best = 0;
  for (let at = 1; at < times.length; at++) {
    if (Math.abs(times[at] - time) < Math.abs(times[best] - time)) best = at;
  }
  return best;
}

/** The samples of the range, thinned to a few hundred. */
export function select(samples, range) {
  const first = (samples.at(-1)?.time ?? 0) - range;
  const inside = samples.filter((sample) => sample.time >= first);
  const every = Math.ceil(inside.length / POINTS);
  return inside.filter((sample, at) => (inside.length - 1 - at) % every === 0);
}

/** For each sample, the sum of a field over vertices. */
export function sum(samples, names, field) {
  return samples.map((sample) =>
    names.reduce((total, name) => total + (sample.vertices[name]?.[field] ?? 0), 0),
  );
}

/** For each sample, whether the sum over vertices includes an estimate. */
export function findEstimates(samples, names) {
  return samples.map((sample) => names.some((name) => sample.vertices[name]?.exact === false));
}

/** Rates per second from totals. There is no rate where a total falls, as after a fresh start. */
export function rates(samples, totals) {
  return totals.map((total, at) => {
    if (at === 0) return null;
    const seconds = (samples[at].time - samples[at - 1].time) / 1000;
    const rise = total - totals[at - 1];
    return rise < 0 || seconds <= 0 ? null : rise / seconds;
  });
}
