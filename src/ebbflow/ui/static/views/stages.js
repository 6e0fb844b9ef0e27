// How long the stages of a chunk take: a table of latencies, and a chart of the last chunks.

import { useWidth } from "../chart.js";
import { html, useState } from "../dom.js";
import { clock, count, duration } from "../format.js";

const STAGES = ["read", "call", "publish", "settle"];
const HEIGHT = 96;
const FOOT = 16;

export function Stages({ latency }) {
  const most = Math.max(...Object.values(latency).map((stage) => stage.p99), 1e-9);
  return html`<table class="stages">
    <thead>
      <tr>
        <th scope="col">stage</th>
        <th scope="col">p50</th>
        <th scope="col">p99</th>
        <th scope="col">mean</th>
        <th scope="col" aria-hidden="true"></th>
      </tr>
    </thead>
    <tbody>
      ${STAGES.filter((stage) => latency[stage]).map(
        (stage) => html`<tr key=${stage}>
          <th scope="row"><span class="swatch ${stage}"></span>${stage}</th>
          <td>${duration(latency[stage].p50)}</td>
          <td>${duration(latency[stage].p99)}</td>
          <td>${duration(latency[stage].mean)}</td>
          <td class="gauge" aria-hidden="true">
            <span class="swatch ${stage}" style=${`width:${(latency[stage].p99 / most) * 100}%`}></span>
          </td>
        </tr>`,
      )}
    </tbody>
  </table>`;
}

/** The last chunks, oldest on the left: a column of stages each, as tall as their time. */
export function Timeline({ chunks }) {
  const [ref, width] = useWidth();
  const [shown, setShown] = useState(null);
  const whole = (chunk) => STAGES.reduce((sum, stage) => sum + chunk[stage], 0);
  const most = Math.max(...chunks.map(whole), 1e-9);
  const step = chunks.length ? Math.min(14, width / chunks.length) : 1;
  const scale = (HEIGHT - FOOT - 4) / most;
  const chunk = chunks[shown] ?? chunks.at(-1);
  return html`<div class="timeline" ref=${ref}>
    ${
      chunk &&
      html`<p class="number muted">
      ${shown == null ? "Last chunk" : "Chunk"} ${clock(chunk.at)}, partition ${chunk.partition}:
      ${" "}${count(chunk.rows)} rows in ${duration(whole(chunk))}
    </p>`
    }
    ${
      chunks.length > 0 &&
      html`<svg
      width=${width}
      height=${HEIGHT}
      role="img"
      aria-label=${`The last ${chunks.length} chunks; the longest took ${duration(most)}`}
      onPointerLeave=${() => setShown(null)}
    >
      ${chunks.map((chunk, at) => {
        let top = HEIGHT - FOOT;
        return html`<g key=${chunk.at + chunk.partition} onPointerEnter=${() => setShown(at)}>
          <rect class="catch" x=${at * step} y="0" width=${step} height=${HEIGHT} />
          ${STAGES.map((stage) => {
            const tall = Math.max(0.6, chunk[stage] * scale);
            top -= tall;
            return html`<rect
              key=${stage}
              class="stage ${stage}"
              x=${at * step + 1}
              y=${top}
              width=${Math.max(1, step - 2)}
              height=${tall}
            />`;
          })}
        </g>`;
      })}
      <line class="floor" x1="0" x2=${width} y1=${HEIGHT - FOOT + 0.5} y2=${HEIGHT - FOOT + 0.5} />
      <text class="tick" x="0" y=${HEIGHT - 3}>${clock(chunks[0].at)}</text>
      <text class="tick" x=${width} y=${HEIGHT - 3} text-anchor="end">longest ${duration(most)}</text>
    </svg>`
    }
  </div>`;
}
