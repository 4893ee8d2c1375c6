/** Second scene: the rate is the effective curvature. */

import { scaleLinear, scaleLog } from "d3-scale";
import { RATE_DIMENSION, RATE_UNKNOWNS } from "../problems";
import type { Figure } from "../ui/frame";
import { axes, curve, label, MARGIN } from "../ui/plot";
import type { Scene } from "../ui/scene";
import { number, type State } from "../ui/state";
import { count, plural, show } from "../ui/words";
import { CEILING, measured, type Run, run } from "./rate_run";

function drawErrors(figure: Figure, { errors, factor }: Run): void {
  const layer = figure.clear();
  const last = errors.length - 1;
  const [low, high] = [Math.min(...errors), Math.max(...errors)].map(Math.log10) as [
    number,
    number,
  ];
  const [bottom, top] = [Math.floor(low), Math.max(Math.ceil(high), Math.floor(low) + 1)];
  const right = figure.width - MARGIN.right;
  const x = scaleLinear([0, Math.max(1, last)], [MARGIN.left, right]);
  const y = scaleLog([10 ** bottom, 10 ** top], [figure.height - MARGIN.bottom, MARGIN.top]);
  const jump = Math.ceil((top - bottom) / 6);
  const powers = Array.from({ length: top - bottom + 1 }, (_, k) => 10 ** (bottom + k)).filter(
    (_, k) => k % jump === 0,
  );
  axes(
    layer,
    figure,
    x,
    y,
    { x: "steps of gradient descent", y: "relative error of the predictor" },
    { y: powers },
  );
  const clip = (value: number) => Math.min(10 ** top, Math.max(10 ** bottom, value));
  const within = Math.max(1, Math.ceil(last / 400));
  const shown = errors
    .map((value, k) => [k, value] as const)
    .filter(([k]) => k % within === 0 || k === last);
  // The predicted line passes through the middle of the run, where the fast modes have died out,
  // and ends where it leaves the drawing.
  const anchor = factor > 1 ? 0 : Math.floor(last / 2);
  const lineEnd = (k: number) => {
    const value = errors[anchor]! * factor ** (k - anchor);
    const inside = clip(value);
    const at =
      inside === value ? k : anchor + Math.log(inside / errors[anchor]!) / Math.log(factor);
    return [x(at), y(inside)] as const;
  };
  curve(layer, "path naive", [
    [x(0), y(errors[0]!)],
    [right, y(errors[0]!)],
  ]);
  curve(
    layer,
    "path one wide",
    shown.map(([k, value]) => [x(k), y(value)]),
  );
  curve(layer, "path two", [lineEnd(0), lineEnd(last)]);
}

/** A logarithmic ruler with named marks; the names are put where they do not overlap. */
function ruler(
  figure: Figure,
  layer: ReturnType<Figure["clear"]>,
  top: number,
  title: string,
  range: readonly [number, number],
  marks: readonly { value: number; name: string; mark: string; above?: boolean }[],
): void {
  const [left, right] = [10, figure.width - 10];
  const x = scaleLog(range, [left, right]).clamp(true);
  const line = top + 52;
  label(layer, title, left, top + 12, "start", "label");
  curve(layer, "rule strong", [
    [left, line],
    [right, line],
  ]);
  for (let power = Math.ceil(Math.log10(range[0])); power <= Math.log10(range[1]); power++) {
    const at = x(10 ** power);
    curve(layer, "rule strong", [
      [at, line - 3],
      [at, line + 3],
    ]);
  }
  for (const { value, name, mark, above } of marks) {
    const at = x(value);
    curve(layer, `tick ${mark}`, [
      [at, line - 10],
      [at, line + 10],
    ]);
    const anchor = at < 90 ? "start" : at > figure.width - 90 ? "end" : "middle";
    const edge =
      anchor === "start"
        ? Math.max(left, at - 10)
        : anchor === "end"
          ? Math.min(right, at + 10)
          : at;
    if (name) label(layer, name, edge, above ? line - 16 : line + 24, anchor, "small");
  }
}

function drawRulers(figure: Figure, { spectrum, step, oracle, limit, n }: Run): void {
  const layer = figure.clear();
  const low = 10 ** Math.floor(Math.log10(Math.min(oracle, step)));
  const high = 10 ** Math.ceil(Math.log10(Math.max(limit, step) * 1.01));
  ruler(
    figure,
    layer,
    0,
    "Step size",
    [low, high],
    [
      { value: oracle, name: `oracle ${show(oracle, 2)}`, mark: "three" },
      { value: limit, name: `limit ${show(limit, 2)}`, mark: "naive" },
      { value: step, name: `step ${show(step, 2)}`, mark: "one", above: true },
    ],
  );
  const seen = spectrum.filter((value) => value > 0);
  const zero = spectrum.length - seen.length;
  const range: [number, number] = [
    10 ** Math.floor(Math.log10(seen[0]!)),
    10 ** Math.ceil(Math.log10(seen[seen.length - 1]!)),
  ];
  ruler(
    figure,
    layer,
    96,
    `Effective eigenvalues, ${zero || "none"} of ${spectrum.length} zero`,
    range,
    [
      ...seen.slice(1, -1).map((value) => ({ value, name: "", mark: "faint" })),
      {
        value: seen[0]!,
        name: `smallest ${zero ? "not zero " : ""}${show(seen[0]!, 2)}`,
        mark: "two",
        above: true,
      },
      {
        value: seen[seen.length - 1]!,
        name: `largest ${show(seen[seen.length - 1]!, 2)}`,
        mark: "naive",
      },
    ],
  );
  figure.describe(
    `The step is ${show(step)}; the oracle step of the paper is ${show(oracle)}, the ` +
      `stability limit ${show(limit)}. ` +
      `There are ${spectrum.length} effective eigenvalues for ${n} samples, from ` +
      `${show(spectrum[0]!)} to ${show(spectrum[spectrum.length - 1]!)}.`,
  );
}

function say(state: State, found: Run): string {
  const { n, spectrum, factor, errors, step, limit, oracle, diverged } = found;
  const smallest = spectrum[0]!;
  const zeros = spectrum.filter((value) => value === 0).length;
  const samples = `${plural(n, "sample")} for ${RATE_UNKNOWNS} unknowns`;
  const end = show(errors[errors.length - 1]!, 2);
  if (diverged || factor > 1 + 1e-9) {
    return (
      `The step is ${show(number(state, "step"), 2)} times the stability limit 2/λmax = ` +
      `${show(limit)}. ` +
      (diverged
        ? `Gradient descent diverges: after ${plural(errors.length, "step")} the error is ` +
          `over ${count(CEILING)} times the target.`
        : "Near the target each step multiplies the error in the steepest direction by " +
          `${show(factor)}, so gradient ` +
          `descent cannot settle there; the run ends with a relative error of ${end}.`)
    );
  }
  if (smallest === 0) {
    return (
      `With ${samples}, ${plural(zeros, "effective eigenvalue")} ` +
      `${zeros === 1 ? "is" : "are"} exactly zero: ` +
      `${zeros === 1 ? "a direction" : "directions"} that no sample sees. ` +
      `The error cannot fall to zero, whatever the step: it ends at ${end}. More samples help.`
    );
  }
  if (factor > 1 - 1e-9) {
    return (
      `The step is the stability limit 2/λmax = ${show(limit)} itself: near the target the ` +
      "error in the steepest direction " +
      "changes its sign at every step and does not shrink. The run ends with a relative " +
      `error of ${end}.`
    );
  }
  const seen = measured(errors);
  const rate = (value: number) => show(-Math.log(value), 4);
  const early = Math.log(seen) < 1.02 * Math.log(factor); // steeper than predicted
  const slow =
    Math.abs(1 - step * smallest) >= factor - 1e-12
      ? `the smallest effective eigenvalue, ${show(smallest)}`
      : "the largest effective eigenvalue, because the step is close to the limit";
  const oraclePart =
    step <= oracle * 1.02
      ? " The step is within the paper's guarantee, and progress is very slow."
      : ` The step is ${count(step / oracle)} times the oracle step of the paper's guarantee.`;
  return (
    `With ${samples}, the error should in the end shrink at the rate ${rate(factor)} per ` +
    `step; the run measures ${rate(seen)}` +
    `${early ? ", because faster directions have not died out yet" : ""}. ` +
    `The prediction comes from ${slow}. The naive Hessian of the weights has a zero ` +
    `eigenvalue and predicts no progress at all.${oraclePart}`
  );
}

function drawAll(state: State, figures: readonly Figure[]): string {
  const found = run(state);
  const [errors, rulers] = figures as [Figure, Figure];
  drawErrors(errors, found);
  errors.explain([
    { name: "gradient descent", mark: "path one wide", shape: "line" },
    { name: "slope predicted by the effective eigenvalues", mark: "path two", shape: "line" },
    { name: "slope predicted by the naive Hessian: zero", mark: "path naive", shape: "line" },
  ]);
  const last = found.errors.length - 1;
  errors.describe(
    "The relative error of the predictor on a logarithmic axis: from " +
      `${show(found.errors[0]!, 2)} at the start to ` +
      `${show(found.errors[last]!, 2)} after ${plural(last, "step")}. The predicted factor ` +
      `per step is ${show(found.factor, 4)}, ` +
      `the measured one ${show(measured(found.errors), 4)}.`,
  );
  drawRulers(rulers, found);
  return say(state, found);
}

export const rate: Scene = {
  id: "rate",
  tab: "2 The rate is the effective curvature",
  title: "The rate is the effective curvature",
  lead:
    "How fast does gradient descent approach the answer? The Hessian of the weights cannot " +
    "say, because turning the " +
    "weights costs nothing: one of its eigenvalues is always zero. Leave those directions " +
    "out, and the smallest eigenvalue that remains is the rate.",
  details: [
    `The target has d = ${RATE_DIMENSION} inputs and rank r = 2, so ${RATE_UNKNOWNS} ` +
      "unknowns; its eigenvalues are 1 and 1/κ. The samples " +
      "x are Gaussian, the responses x′Qx have no noise, and the run starts close to the target.",
    "The effective eigenvalues are those of (1/n) Σ (x′ξx)² for tangent directions ξ, " +
      "measured by the quotient metric (Theorem 3.1). " +
      "Near the target a step multiplies the error in each direction by 1 − ηλ; the largest " +
      "of these factors is the predicted slope. " +
      "Steps below 2/λmax are stable.",
    "The oracle step is α/L² of Theorem 3.7 with m = 1 and M = d + 3. It is guaranteed to work close " +
      "to the target if there are enough samples, and is far smaller than what works.",
    "Rates are natural logarithms per step. The measured rate is that of the last third of " +
      "the run; the predicted line is drawn through the middle of the run.",
  ],
  controls: [
    {
      kind: "slider",
      key: "kappa",
      label: "Condition number κ of the target",
      min: 1,
      max: 32,
      count: 20,
      logarithmic: true,
      initial: 4,
      text: (v) => show(v, 2),
    },
    {
      kind: "slider",
      key: "ratio",
      label: "Samples per unknown",
      min: 0.5,
      max: 8,
      count: 30,
      initial: 4,
      text: (v) => `${show(v)} (n = ${Math.round(v * RATE_UNKNOWNS)})`,
    },
    {
      kind: "slider",
      key: "step",
      label: "Step, as a multiple of the stability limit",
      min: 2 ** -13,
      max: 2,
      count: 56,
      logarithmic: true,
      initial: 0.5,
      text: (v) => `${show(v, 2)} × limit`,
    },
  ],
  presets: [
    { name: "Hard target", values: { kappa: 32 } },
    { name: "Barely enough samples", values: { ratio: 1.25 } },
    { name: "Too few samples", values: { ratio: 0.75 } },
    { name: "Past the limit", values: { step: 1.2 } },
    { name: "The paper's oracle step", values: { step: 2.6e-3, kappa: 1 } },
  ],
  figures: [
    { title: "Error of the predictor during training", ratio: 0.56, least: 260, widest: 640 },
    {
      title: "The step and the curvature, on logarithmic rulers",
      ratio: 0,
      least: 184,
      widest: 640,
    },
  ],
  draw: drawAll,
};
