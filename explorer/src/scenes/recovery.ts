/** Fourth scene: where recovery begins. */

import { scaleBand, scaleLinear } from "d3-scale";
import { directionLoss, type LocalMinimum, localMinima } from "../core/sphere";
import { RECOVERY_SAMPLES, RECOVERY_SETS, recoveryProblem } from "../problems";
import { draw, type Figure } from "../ui/frame";
import { curve, label } from "../ui/plot";
import type { Scene } from "../ui/scene";
import { number, type State } from "../ui/state";
import { plural, show } from "../ui/words";
import { type Spot, view } from "./space";

const UNKNOWNS = 3;
const EXACT = 1e-12; // the loss of a solution, as a fraction of the loss of zero
const BANDS = 18;
// From no loss to the most; readable on light and dark pages and in print.
const COLOURS = [
  [8, 29, 72],
  [24, 96, 150],
  [104, 172, 200],
  [190, 219, 219],
  [246, 240, 224],
];

const kept = new Map<string, LocalMinimum[]>();

const keyOf = (set: number, n: number): string => `${set},${n}`;

function minima(set: number, n: number): LocalMinimum[] {
  let found = kept.get(keyOf(set, n));
  if (!found) kept.set(keyOf(set, n), (found = localMinima(recoveryProblem(set, n).samples)));
  return found;
}

/** The colour of a band, between two of the list, as one number in the order of a canvas. */
function shade(band: number): number {
  const place = (band / (BANDS - 1)) * (COLOURS.length - 1);
  const from = Math.min(COLOURS.length - 2, Math.floor(place));
  const mixed = COLOURS[from]!.map(
    (value, k) => value + (place - from) * (COLOURS[from + 1]![k]! - value),
  );
  return new Uint32Array(Uint8ClampedArray.from([...mixed, 255]).buffer)[0]!;
}

const SHADES = Array.from({ length: BANDS }, (_, band) => shade(band));
// Bands of equal angles between the responses and what a direction can give; the loss is sin^2.
const LIMITS = SHADES.map((_, band) =>
  band < BANDS - 1 ? Math.sin(((band + 1) / BANDS) * (Math.PI / 2)) ** 2 : 2,
);

/** Paint the loss along every visible direction. */
function paint(figure: Figure, state: State, radius: number): void {
  const canvas = figure.canvas!;
  const size = Math.max(2, Math.round(2 * radius));
  canvas.width = canvas.height = size;
  canvas.style.width = canvas.style.height = `${2 * radius}px`;
  canvas.style.left = `${(figure.width - 2 * radius) / 2}px`;
  canvas.style.top = `${(figure.height - 2 * radius) / 2}px`;
  const context = canvas.getContext("2d");
  if (!context) return;
  const { samples } = recoveryProblem(number(state, "set"), number(state, "n"));
  const value = directionLoss(samples);
  const seen = view(number(state, "yaw"), number(state, "pitch"), 1, [0, 0]);
  const [right, above, front] = [seen.spot(1, 0, 0), seen.spot(0, 1, 0), seen.spot(0, 0, 1)];
  const image = context.createImageData(size, size);
  const pixels = new Uint32Array(image.data.buffer);
  for (let row = 0; row < size; row++) {
    for (let col = 0; col < size; col++) {
      const [across, up] = [(2 * col + 1) / size - 1, 1 - (2 * row + 1) / size];
      const rest = 1 - across * across - up * up;
      if (rest < 0) continue;
      const near = Math.sqrt(rest);
      const height = value(
        across * right[0] + up * above[0] + near * front[0],
        across * right[1] + up * above[1] + near * front[1],
        across * right[2] + up * above[2] + near * front[2],
      );
      let band = 0;
      while (height > LIMITS[band]!) band++;
      pixels[row * size + col] = SHADES[band]!;
    }
  }
  context.putImageData(image, 0, 0);
}

function drawSphere(figure: Figure, state: State, found: readonly LocalMinimum[]): void {
  const layer = figure.clear();
  const radius = 0.46 * Math.min(figure.width, figure.height);
  const middle = [figure.width / 2, figure.height / 2] as const;
  paint(figure, state, radius);
  layer
    .append("circle")
    .attr("class", "rim")
    .attr("cx", middle[0])
    .attr("cy", middle[1])
    .attr("r", radius);
  const seen = view(number(state, "yaw"), number(state, "pitch"), radius, middle);
  const { target } = recoveryProblem(number(state, "set"), number(state, "n"));
  const size = (u: readonly number[]) => Math.hypot(...u);
  const spots = (u: readonly number[]): Spot[] =>
    [1, -1].map((sign) => u.map((value) => (sign * value) / size(u)) as unknown as Spot);
  for (const { u, fraction } of found) {
    for (const spot of spots(u)) {
      if (seen.depth(spot) < 0) continue;
      const [x, y] = seen.place(spot);
      const mark = fraction < EXACT ? "on-map exact" : "on-map trap";
      layer
        .append("circle")
        .attr("class", mark)
        .attr("cx", x)
        .attr("cy", y)
        .attr("r", fraction < EXACT ? 9 : 6);
    }
  }
  for (const spot of spots(target))
    if (seen.depth(spot) >= 0) draw(layer, "star", "on-map truth", ...seen.place(spot));
}

/** For each number of samples: local minima found so far, and what posquad says. */
function drawCounts(figure: Figure, set: number, n: number, statuses: readonly string[]): void {
  const layer = figure.clear();
  const all = statuses.map((_, k) => k + 1);
  const x = scaleBand(all.map(String), [48, figure.width - 6]).padding(0.25);
  const counts = all.map((k) => (k < UNKNOWNS ? null : (kept.get(keyOf(set, k)) ?? [])));
  const most = Math.max(4, ...counts.map((found) => found?.length ?? 0));
  const base = figure.height - 62;
  const y = scaleLinear([0, most + 0.4], [base, 10]);
  const centre = (k: number): number => x(`${k}`)! + x.bandwidth() / 2;
  layer
    .append("rect")
    .attr("class", "chosen")
    .attr("x", x(`${n}`)! - 3)
    .attr("y", 4)
    .attr("width", x.bandwidth() + 6)
    .attr("height", figure.height - 24);
  for (let k = 0; k <= most; k++) label(layer, `${k}`, 40, y(k) + 4, "end", "small");
  curve(layer, "rule strong", [
    [46, base],
    [figure.width - 4, base],
  ]);
  all.forEach((k, i) => {
    const found = counts[i];
    if (!found) label(layer, "∞", centre(k), base - 6);
    found?.forEach(({ fraction }, j) => {
      draw(
        layer,
        fraction < EXACT ? "dot" : "ring",
        fraction < EXACT ? "exact" : "trap",
        centre(k),
        y(j + 1),
      );
    });
    if (k % 2 === 1 || figure.width > 420)
      label(layer, `${k}`, centre(k), figure.height - 24, "middle", k === n ? "label" : "small");
    mark(layer, statuses[i]!, centre(k), base + 18);
  });
  label(layer, "number of samples n", (48 + figure.width) / 2, figure.height - 4);
}

/** Proved, recovered or not identified. */
function mark(layer: ReturnType<Figure["clear"]>, status: string, x: number, y: number): void {
  if (status === "CERTIFIED") draw(layer, "square", "proved", x, y);
  else if (status === "RECOVERED") draw(layer, "square", "recovered", x, y);
  else draw(layer, "cross", "cross", x, y);
}

const VERDICTS: Readonly<Record<string, string>> = {
  UNDETERMINED: "posquad says UNDETERMINED: the samples do not even span the space.",
  NOT_IDENTIFIED: "posquad says NOT_IDENTIFIED: the data do not determine the answer.",
  RECOVERED:
    "posquad says RECOVERED: it finds one answer and no other, but has no proof that there " +
    "is none.",
  CERTIFIED:
    "posquad says CERTIFIED: it is proved that no other positive semidefinite matrix, of any " +
    "rank, fits the data.",
};

function say(n: number, found: readonly LocalMinimum[], status: string): string {
  const verdict = VERDICTS[status] ?? `posquad says ${status}.`;
  const samples = `With ${plural(n, "sample")} for ${UNKNOWNS} unknowns`;
  if (n < UNKNOWNS) {
    const where =
      n === 1
        ? "almost every direction has a perfect fit"
        : "the perfect fits fill whole curves (the darkest bands)";
    return `${samples}, ${where}: there are infinitely many answers. ${verdict}`;
  }
  const exact = found.filter(({ fraction }) => fraction < EXACT).length;
  const traps = found.length - exact;
  const fits =
    exact === 1
      ? "one direction fits perfectly"
      : `${exact} different directions fit perfectly, and nothing tells which is right`;
  const others =
    traps === 0
      ? exact === 1
        ? "There is no other local minimum, so descent finds it from almost every start."
        : "There is no other local minimum."
      : `There ${traps === 1 ? "is" : "are"} also ` +
        `${plural(traps, "local minimum", "local minima")} in which descent can get stuck, ` +
        `with ${show(100 * found[exact]!.fraction, 2)}% of the loss of predicting ` +
        `zero${traps > 1 ? " or more" : ""}.`;
  return `${samples}, ${fits}. ${others} ${verdict}`;
}

function drawAll(state: State, figures: readonly Figure[], again: () => void): string {
  const [sphere, counts] = figures as [Figure, Figure];
  const [set, n] = [number(state, "set"), number(state, "n")];
  const { statuses } = recoveryProblem(set, n);
  const known = n < UNKNOWNS || kept.has(keyOf(set, n));
  const found = n < UNKNOWNS ? [] : minima(set, n);
  drawSphere(sphere, state, found);
  // The minima for the other numbers of samples, one for each frame.
  const missing = statuses.findIndex((_, k) => k + 1 >= UNKNOWNS && !kept.has(keyOf(set, k + 1)));
  if (missing >= 0) {
    if (known) minima(set, missing + 1);
    again();
  }
  drawCounts(counts, set, n, statuses);
  const exact = found.filter(({ fraction }) => fraction < EXACT).length;
  sphere.explain([
    { name: "perfect fit", mark: "on-map exact", shape: "dot" },
    { name: "other local minimum", mark: "on-map trap", shape: "ring" },
    { name: "the true direction", mark: "on-map truth", shape: "star" },
    { name: "low loss", mark: "low", shape: "area" },
    { name: "high loss", mark: "high", shape: "area" },
  ]);
  sphere.describe(
    `The sphere of directions, coloured by the least loss along each. ` +
      (n < UNKNOWNS
        ? "Perfect fits are not isolated."
        : `${plural(exact, "perfect fit")} and ` +
          `${plural(found.length - exact, "other local minimum", "other local minima")}, ` +
          "each with its opposite."),
  );
  counts.explain([
    { name: "perfect fit", mark: "exact", shape: "dot" },
    { name: "other local minimum", mark: "trap", shape: "ring" },
    { name: "certified by posquad", mark: "proved", shape: "square" },
    { name: "recovered, no proof", mark: "recovered", shape: "square" },
    { name: "not identified", mark: "cross", shape: "cross" },
  ]);
  const first = (word: string) => statuses.indexOf(word) + 1;
  counts.describe(
    `Local minima for 1 to ${RECOVERY_SAMPLES} samples of data set ${set}. For ${n} samples: ` +
      `${n < UNKNOWNS ? "infinitely many" : found.length}. ` +
      `posquad certifies its answer from ${first("CERTIFIED")} samples on.`,
  );
  return say(n, found, statuses[n - 1]!);
}

export const recovery: Scene = {
  id: "recovery",
  tab: "4 Where recovery begins",
  title: "Where recovery begins",
  lead:
    "A vector u with three entries is measured only through the squares (x′u)². How many " +
    "samples x are needed to find it? " +
    "Add them one by one, and watch the valleys of the loss vanish until, usually, one is left.",
  details: [
    "The responses are (x′u)², without noise; u and −u give the same, so every mark has its " +
      "opposite. For a direction s on the sphere " +
      "the colour shows the least loss over all lengths: the angle between the responses and " +
      "what that direction can give.",
    "The local minima are found in this page, by Newton's method from one start for each way " +
      "in which the signs of the numbers x′u can " +
      "fall. What posquad says comes from a table, computed by posquad.recover(X, y, rank=1, " +
      "certify=True).",
    `A matrix uu′ of rank one has ${UNKNOWNS} unknowns. With ${UNKNOWNS} samples there are ` +
      "four solutions, one for each choice of the signs; with one more there is usually one.",
  ],
  controls: [
    {
      kind: "slider",
      key: "n",
      label: "Number of samples n",
      min: 1,
      max: RECOVERY_SAMPLES,
      count: RECOVERY_SAMPLES - 1,
      initial: 4,
      text: (v) => show(v),
    },
    {
      kind: "slider",
      key: "set",
      label: "Data set",
      min: 1,
      max: RECOVERY_SETS,
      count: RECOVERY_SETS - 1,
      initial: 1,
      text: (v) => `${show(v)} of ${RECOVERY_SETS}`,
    },
    { kind: "angle", key: "yaw", min: -180, max: 180, initial: 0 },
    { kind: "angle", key: "pitch", min: -90, max: 90, initial: 20 },
  ],
  presets: [
    { name: "Two samples", values: { n: 2 } },
    { name: "Three samples", values: { n: 3 } },
    { name: "Two traps", values: { n: 5, set: 9 } },
    { name: "A trap that stays", values: { n: 13, set: 3 } },
    { name: "All samples", values: { n: RECOVERY_SAMPLES } },
  ],
  figures: [
    {
      title: "The loss along every direction of u",
      ratio: 0.92,
      widest: 400,
      canvas: true,
      turnable: true,
    },
    { title: "Local minima, and what posquad says", ratio: 0.6, least: 230, widest: 520 },
  ],
  draw: drawAll,
};
