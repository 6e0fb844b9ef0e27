// The charts of a pipeline or of one of its vertices: throughput, pending, parked, dead letters.

import { Chart, findEstimates, rates, select, sum } from "../chart.js";
import { html, useMemo, useState } from "../dom.js";
import { brief, rate } from "../format.js";

const RANGES = [
  ["5 min", 300000],
  ["15 min", 900000],
  ["1 h", 3600000],
];

/** entries and exits: the vertices whose reads count as in and out. names: those in the other charts. */
export function Charts({
  samples,
  names,
  entries,
  exits,
  labels = ["in", "out"],
  title = "Charts over time",
}) {
  const [range, setRange] = useState(RANGES[0][1]);
  const shown = useMemo(() => select(samples, range), [samples, range]);
  const key = [...names, "|", ...entries, "|", ...exits].join();
  const lines = useMemo(() => {
    const estimates = findEstimates(shown, names);
    const perSecond = (names, field) => rates(shown, sum(shown, names, field));
    return {
      times: shown.map((sample) => sample.time),
      throughput: [
        { name: `${labels[0]}/s`, tone: "first", values: perSecond(entries, "read") },
        {
          name: `${labels[1]}/s`,
          tone: "second",
          values: perSecond(exits, labels[1] === "written" ? "written" : "read"),
        },
      ],
      pending: [{ name: "pending", tone: "first", values: sum(shown, names, "pending"), estimates }],
      parked: [{ name: "parked", tone: "third", values: sum(shown, names, "parked"), estimates }],
      letters: [{ name: "stored", tone: "bad", values: sum(shown, names, "dead_letters") }],
    };
  }, [shown, key]);
  const charts = [
    ["Throughput", lines.throughput, rate],
    ["Pending", lines.pending, brief],
    ["Parked", lines.parked, brief],
    ["Dead letters", lines.letters, brief],
  ];
  return html`<section class="charts" aria-label=${title}>
    <header>
      <h2>Over time</h2>
      <${Ranges} range=${range} onRange=${setRange} />
    </header>
    ${charts.map(
      ([title, series, format]) =>
        html`<${Chart} key=${title} title=${title} times=${lines.times} series=${series} format=${format} range=${range} />`,
    )}
  </section>`;
}

/** The time range of all charts in a section. */
function Ranges({ range, onRange }) {
  return html`<div class="ranges" role="group" aria-label="Time shown">
    ${RANGES.map(
      ([name, value]) => html`<button
        key=${name}
        type="button"
        class="quiet"
        aria-pressed=${range === value}
        onClick=${() => onRange(value)}
      >
        ${name}
      </button>`,
    )}
  </div>`;
}
