/** Ordinary differential equations by the embedded pair of Dormand and Prince, order 5(4). */

import type { Vector } from "./matrix";

type Field = (x: Vector) => number[];

const STAGES: readonly Vector[] = [
  [1 / 5],
  [3 / 40, 9 / 40],
  [44 / 45, -56 / 15, 32 / 9],
  [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
  [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
  [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
];
const ERROR: Vector = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];

/**
 * The solution of dx/dt = field(x) at increasing times; the first record is the start, at time 0.
 *
 * Each step keeps its local error below `tolerance` times the largest entry of x, or times `unit`
 * if that is larger. If that needs more than `maxSteps` steps, the remaining records are missing.
 */
export function integrate(
  field: Field,
  start: Vector,
  times: Vector,
  tolerance = 1e-10,
  unit = 1e-300,
  maxSteps = 20_000,
): number[][] {
  const records: number[][] = [[...start]];
  let x = [...start];
  let slope = field(x);
  let t = 0;
  let step = 0.01 * (Math.max(largest(x), unit) / Math.max(largest(slope), 1e-300));
  let taken = 0;
  for (const end of times) {
    while (t < end) {
      if (++taken > maxSteps || !(step > 1e-14 * end)) return records;
      const last = t + step >= end;
      const h = last ? end - t : step;
      const trial = attempt(field, x, slope, h);
      const ratio = trial.error / (tolerance * Math.max(largest(x), unit));
      const growth = Number.isFinite(ratio) ? 0.9 * Math.max(ratio, 1e-10) ** -0.2 : 0.1;
      if (ratio <= 1) {
        [x, slope, t] = [trial.x, trial.slope, last ? end : t + h];
        // A step that was cut short to meet a record says little about the next one.
        if (!last || growth < 1) step = h * Math.min(5, growth);
      } else {
        step = h * Math.max(0.1, Math.min(growth, 0.9));
      }
    }
    records.push([...x]);
  }
  return records;
}

function attempt(field: Field, x: Vector, slope: number[], h: number) {
  const k = [slope];
  let point = [...x];
  for (const row of STAGES) {
    point = x.map((value, i) => value + h * row.reduce((sum, w, j) => sum + w * k[j]![i]!, 0));
    k.push(field(point));
  }
  // The last stage is the new point, and its slope the first one of the next step.
  const error = largest(x.map((_, i) => h * ERROR.reduce((sum, w, j) => sum + w * k[j]![i]!, 0)));
  return { x: point, slope: k[6]!, error };
}

const largest = (x: Vector): number =>
  x.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
