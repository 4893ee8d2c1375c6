/** First scene: one predictor, many factors. */

import { scaleLinear } from "d3-scale";
import { distance, type Matrix, predictor } from "../core/matrix";
import { gradientFlow, loss } from "../core/regression";
import { type FiberProblem, fiberProblem, type Target } from "../problems";
import { draw, type Figure } from "../ui/frame";
import { curve, label, type Point } from "../ui/plot";
import type { Scene } from "../ui/scene";
import { flag, number, type State, text } from "../ui/state";
import { show } from "../ui/words";
import { type Spot, view } from "./space";

const END = 6;
const RECORDS = 120;
const CIRCLE = Array.from({ length: 73 }, (_, k) => (k * Math.PI) / 36);

interface Runs {
  readonly problem: FiberProblem;
  readonly first: Matrix[];
  readonly second: Matrix[];
}

let kept: { key: string; runs: Runs } | undefined;

/** Both flows, each integrated on its own; the last answer is kept, for the time slider. */
function runs(state: State): Runs {
  const given = [
    text(state, "target"),
    number(state, "size"),
    number(state, "angle"),
    flag(state, "mirror"),
  ] as const;
  const key = given.join();
  if (kept?.key !== key) {
    const problem = fiberProblem(given[0] as Target, given[1], given[2], given[3]);
    const times = Array.from({ length: RECORDS }, (_, k) => ((k + 1) * END) / RECORDS);
    const flow = (from: Matrix) => gradientFlow(problem.samples, from, times);
    kept = { key, runs: { problem, first: flow(problem.first), second: flow(problem.second) } };
  }
  return kept.runs;
}

const column = (U: Matrix, j: number): Point => [U[0]![j]!, U[1]![j]!];

/** The ellipse of all columns of UR, over all rotations R. */
const ellipse = (U: Matrix): Point[] =>
  CIRCLE.map((angle) => {
    const [c, s] = [Math.cos(angle), Math.sin(angle)];
    return [U[0]![0]! * c + U[0]![1]! * s, U[1]![0]! * c + U[1]![1]! * s];
  });

function drawFactors(figure: Figure, { problem, first, second }: Runs, now: number): void {
  const layer = figure.clear();
  const outer = [...ellipse(problem.target), ...ellipse(problem.first), ...ellipse(first[now]!)];
  const reach = 1.12 * Math.max(...outer.flat().map(Math.abs));
  const x = scaleLinear([-reach, reach], [0, figure.width]);
  const y = scaleLinear([-reach, reach], [figure.height, 0]);
  const at = ([a, b]: Point): Point => [x(a), y(b)];
  const zero = at([0, 0]);
  curve(layer, "rule", [
    [0, zero[1]],
    [figure.width, zero[1]],
  ]);
  curve(layer, "rule", [
    [zero[0], 0],
    [zero[0], figure.height],
  ]);
  label(layer, "first input →", figure.width - 4, figure.height - 6, "end", "small");
  label(layer, "↑ second input", 4, 14, "start", "small");
  curve(layer, "target-line", ellipse(problem.target).map(at));
  curve(layer, "fiber-line", ellipse(first[now]!).map(at));
  (
    [
      [first, "one"],
      [second, "two"],
    ] as const
  ).forEach(([run, mark]) => {
    for (const j of [0, 1]) {
      const here = at(column(run[now]!, j));
      curve(layer, `arm ${mark}`, [zero, here]);
      curve(
        layer,
        `path ${mark}`,
        run.slice(0, now + 1).map((U) => at(column(U, j))),
      );
      draw(layer, "ring", mark, ...at(column(run[0]!, j)));
      draw(layer, "dot", mark, ...here);
    }
  });
}

/** Coordinates in which the positive semidefinite matrices are the circular cone z >= |(x, y)|. */
const spot = (Q: Matrix): Spot => [
  (Q[0]![0]! - Q[1]![1]!) / 2,
  Q[0]![1]!,
  (Q[0]![0]! + Q[1]![1]!) / 2,
];

function drawCone(
  figure: Figure,
  state: State,
  { problem, first, second }: Runs,
  now: number,
): void {
  const layer = figure.clear();
  const paths = [first, second].map((run) => run.map((U) => spot(predictor(U))));
  const target = spot(predictor(problem.target));
  const top = 1.15 * Math.max(target[2], ...paths[0]!.map((s) => s[2]));
  const scale = (0.46 * Math.min(figure.width, figure.height)) / top;
  const seen = view(number(state, "yaw"), number(state, "pitch"), scale, [
    figure.width / 2,
    figure.height / 2,
  ]);
  const place = ([a, b, z]: Spot): Point => seen.place([a, b, z - top / 2]);
  const ring = (z: number): Point[] =>
    CIRCLE.map((t) => place([z * Math.cos(t), z * Math.sin(t), z]));
  const apex = place([0, 0, 0]);
  for (let k = 0; k < CIRCLE.length - 1; k += 3) {
    const [a, b] = [CIRCLE[k]!, CIRCLE[k + 3]!];
    const [p, q] = [a, b].map((t) => place([top * Math.cos(t), top * Math.sin(t), top])) as [
      Point,
      Point,
    ];
    layer.append("polygon").attr("class", "cone").attr("points", [apex, p, q].join(" "));
  }
  for (const share of [1 / 3, 2 / 3, 1]) curve(layer, "rule", ring(share * top));
  const here = paths[0]![now]!;
  curve(layer, "level", ring(here[2]));
  curve(layer, "rule", [apex, place([0, 0, top])]);
  curve(layer, "path one wide", paths[0]!.slice(0, now + 1).map(place));
  curve(layer, "path two", paths[1]!.slice(0, now + 1).map(place));
  draw(layer, "star", "goal", ...place(target));
  draw(layer, "ring", "one", ...place(paths[0]![0]!));
  draw(layer, "dot", "one", ...place(here));
}

function drawAll(state: State, figures: readonly Figure[]): string {
  const all = runs(state);
  const now = Math.min(
    Math.round((number(state, "time") / END) * RECORDS),
    all.first.length - 1,
    all.second.length - 1,
  );
  const [factors, cone] = figures as [Figure, Figure];
  drawFactors(factors, all, now);
  drawCone(cone, state, all, now);
  const [U, V] = [all.first[now]!, all.second[now]!];
  const apart = distance(U, V);
  const gap = distance(predictor(U), predictor(V));
  const left = loss(all.problem.samples, U) / loss(all.problem.samples, all.first[0]!);
  const mirrored = flag(state, "mirror") ? " and mirrored" : "";
  const turned = `turned by ${show(number(state, "angle"))}°${mirrored}`;
  factors.explain([
    { name: "first start", mark: "path one", shape: "line" },
    { name: "second start", mark: "path two", shape: "line" },
    { name: "start", mark: "neutral", shape: "ring" },
    { name: "now", mark: "neutral", shape: "dot" },
    {
      name: "ellipse of all factors of the predictor now (the fiber)",
      mark: "fiber-line",
      shape: "line",
    },
    { name: "ellipse of the target", mark: "target-line", shape: "line" },
  ]);
  cone.explain([
    { name: "both predictors, one on the other", mark: "path one wide", shape: "line" },
    { name: "target", mark: "goal", shape: "star" },
    { name: "surface of the cone: rank one", mark: "cone strong", shape: "area" },
    { name: "surface at the height of the dot", mark: "level", shape: "line" },
  ]);
  factors.describe(
    "The two columns of each factor as points of the plane, at time " +
      `${show(number(state, "time"))}. ` +
      `The factors of the two runs are ${show(apart)} apart. All four points lie on one ellipse.`,
  );
  const Q = predictor(U);
  cone.describe(
    "The cone of positive semidefinite two by two matrices. Both runs follow one path in it. " +
      "The predictor now has " +
      `the entries ${show(Q[0]![0]!)}, ${show(Q[0]![1]!)} and ${show(Q[1]![1]!)}.`,
  );
  const done =
    now === 0
      ? "Training has not begun; move the time slider or press Play."
      : `After training for time ${show(number(state, "time"))} the loss is ` +
        `${show(100 * left, 2)}% of what it was.`;
  if (apart < 1e-6) {
    return (
      "Both starts are the same, so there is one run. Turn the second start to see another " +
      `factor of the same predictor. ${done}`
    );
  }
  return (
    `The second start is the first one ${turned}. Its weights are different (the factors are ` +
    `${show(apart)} apart), ` +
    `but the predictor is the same, and it remains the same: the two predictors differ by ` +
    `${show(gap, 2)}${gap < 1e-8 ? ", which is only the error of the integration" : ""}. ${done}`
  );
}

export const fiber: Scene = {
  id: "fiber",
  tab: "1 One predictor, many factors",
  title: "One predictor, many factors",
  lead:
    "A network with weights U predicts x′UU′x. Turning the weights, U → UR, changes every " +
    "weight and no " +
    "prediction. Here two networks start from turned weights. Do they learn the same thing?",
  details: [
    "U is a 2 × 2 matrix, and its two columns are drawn as points. The weights that give the " +
      "same predictor " +
      "Q = UU′ are UR for all rotations and reflections R; this set is called the fiber. " +
      "Their columns lie on one ellipse.",
    "Both runs are the gradient flow dU/dt = −∇L(U) of the square loss on four inputs, " +
      "integrated separately by an " +
      "embedded Runge-Kutta pair of order 5(4). Theorem 2.3 of the paper says that the " +
      "predictor follows a flow of " +
      "its own, which does not depend on R.",
    "The cone on the right is the set of positive semidefinite 2 × 2 matrices with entries " +
      "a, b, c, in the coordinates " +
      "(a − c)/2, b and (a + c)/2. On its surface the rank is one.",
  ],
  controls: [
    {
      kind: "slider",
      key: "angle",
      label: "Turn the second start by",
      min: 0,
      max: 355,
      count: 71,
      initial: 70,
      text: (v) => `${show(v)}°`,
    },
    {
      kind: "slider",
      key: "size",
      label: "Size of both starts",
      min: 0.1,
      max: 1.5,
      count: 28,
      initial: 0.4,
      text: (v) => show(v),
    },
    {
      kind: "slider",
      key: "time",
      label: "Training time",
      min: 0,
      max: END,
      count: RECORDS,
      initial: 1.5,
      text: (v) => show(v),
    },
    {
      kind: "choice",
      key: "target",
      label: "Target",
      initial: "long",
      options: [
        { value: "round", label: "round: two equal eigenvalues" },
        { value: "long", label: "long: eigenvalues far apart" },
        { value: "flat", label: "flat: almost rank one" },
      ],
    },
    { kind: "switch", key: "mirror", label: "Mirror the second start as well", initial: false },
    { kind: "angle", key: "yaw", min: -180, max: 180, initial: 25 },
    { kind: "angle", key: "pitch", min: -90, max: 90, initial: 18 },
  ],
  presets: [
    { name: "Small start, flat target", values: { size: 0.1, target: "flat", time: 6 } },
    { name: "Mirrored", values: { mirror: true, angle: 130, time: 2 } },
    { name: "Large start", values: { size: 1.5, target: "round", angle: 200, time: 1 } },
  ],
  figures: [
    { title: "Factor space: the columns of U", ratio: 0.92, widest: 420 },
    {
      title: "Predictor space: the cone of 2 × 2 matrices",
      ratio: 0.92,
      widest: 420,
      turnable: true,
    },
  ],
  played: "time",
  draw: drawAll,
};
