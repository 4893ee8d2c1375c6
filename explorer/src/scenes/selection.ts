/** Third scene: which interpolant does training select? */

import { scaleLinear } from "d3-scale";
import { dot, norm, subtract, type Vector } from "../core/matrix";
import {
  bregmanProjection,
  type Descent,
  minimumTrace,
  type MinimumTrace,
  mirrorFlow,
  reducedDescent,
  type System,
  vertices,
} from "../core/selection";
import { selectionStart, selectionSystem, type SystemName } from "../problems";
import { draw, type Figure, type Key, type Layer } from "../ui/frame";
import { axes, curve, label, MARGIN, type Point } from "../ui/plot";
import type { Scene } from "../ui/scene";
import { flag, number, type State, text } from "../ui/state";
import { count, show } from "../ui/words";

const TIMES = Array.from({ length: 140 }, (_, k) => 0.01 * 6000 ** (k / 139));

interface Found {
  readonly system: System;
  readonly start: number[];
  readonly path: number[][];
  readonly selected: number[];
  readonly least: MinimumTrace;
  readonly descent: Descent | null;
}

function find(state: State): Found {
  const name = text(state, "system") as SystemName;
  const system = selectionSystem(name, number(state, "weight"));
  const start = selectionStart(
    system,
    number(state, "eps"),
    name === "paper" ? number(state, "shape") : 1,
  );
  return {
    system,
    start,
    path: mirrorFlow(system, start, TIMES, 1e-9),
    selected: bregmanProjection(system, start)!,
    least: minimumTrace(system)!,
    descent: flag(state, "finite") ? reducedDescent(system, start, number(state, "step")) : null,
  };
}

/** The plane of q_1 and q_2, in which the solutions of the paper's system fill a strip. */
function plane(figure: Figure, layer: Layer, { system }: Found): (q: Vector) => Point {
  const x = scaleLinear([0, 1.1], [MARGIN.left, figure.width - MARGIN.right]).clamp(true);
  const y = scaleLinear([0, 1.1], [figure.height - MARGIN.bottom, MARGIN.top]).clamp(true);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  axes(layer, figure, x, y, { x: "q₁", y: "q₂" }, { x: ticks, y: ticks });
  const place = (q: Vector): Point => [x(q[0]!), y(q[1]!)];
  const corners = vertices(system).sort((a, b) => a[0]! - a[1]! - (b[0]! - b[1]!));
  const inner = corners.filter((q) => q[0]! + q[1]! < 0.85);
  const outer = corners.filter((q) => q[0]! + q[1]! >= 0.85).reverse();
  const outline = [...inner, ...outer].map(place).join(" ");
  layer.append("polygon").attr("class", "solutions").attr("points", outline);
  return place;
}

/** The triangle of all solutions of one measurement; a point is seen from the origin. */
function triangle(figure: Figure, layer: Layer, { system }: Found): (q: Vector) => Point {
  const side = Math.min(figure.width - 80, (figure.height - 70) / 0.866);
  const middle = figure.width / 2;
  const corners: Point[] = [
    [middle - side / 2, 30 + 0.866 * side],
    [middle + side / 2, 30 + 0.866 * side],
    [middle, 30],
  ];
  layer.append("polygon").attr("class", "solutions").attr("points", corners.join(" "));
  label(layer, "only q₁", corners[0]![0], corners[0]![1] + 24);
  label(layer, "only q₂", corners[1]![0], corners[1]![1] + 24);
  label(layer, "only q₃", corners[2]![0], corners[2]![1] - 14);
  const b = system.B[0]!;
  return (q) => {
    const total = dot(b, q);
    const shares = q.map((value, a) => (value * b[a]!) / total);
    return [0, 1].map((k) =>
      shares.reduce((sum, w, a) => sum + w * corners[a]![k]!, 0),
    ) as unknown as Point;
  };
}

function drawMap(figure: Figure, name: SystemName, found: Found): void {
  const layer = figure.clear();
  const { path, selected, least, descent, start } = found;
  const place = name === "paper" ? plane(figure, layer, found) : triangle(figure, layer, found);
  curve(layer, "face", least.vertices.map(place));
  if (least.vertices.length === 1) draw(layer, "dot", "face-point", ...place(least.vertices[0]!));
  curve(layer, "path one wide", path.map(place));
  const keys: Key[] = [
    { name: "all solutions", mark: "solutions", shape: "area" },
    least.vertices.length > 1
      ? { name: "solutions of least trace", mark: "face", shape: "line" }
      : { name: "solution of least trace", mark: "face-point", shape: "dot" },
    { name: "training path", mark: "path one wide", shape: "line" },
    { name: "start", mark: "one", shape: "ring" },
    { name: "selected: the Bregman projection", mark: "one", shape: "dot" },
  ];
  draw(layer, "dot", "one", ...place(selected));
  if (descent) {
    curve(layer, "path two", descent.path.map(place));
    keys.push({ name: "gradient descent with finite steps", mark: "path two", shape: "line" });
    if (descent.limit) {
      keys.push({ name: "its limit", mark: "two", shape: "square" });
      draw(layer, "square", "two", ...place(descent.limit));
    }
  }
  draw(layer, "ring", "one", ...place(start));
  draw(layer, "star", "goal", ...place(least.entropic));
  keys.push({ name: "entropic point", mark: "goal", shape: "star" });
  figure.explain(keys);
}

function tabulate(figure: Figure, { system, selected, least, descent, start }: Found): void {
  const row = (name: string, q: Vector): string[] => [
    name,
    ...q.map((v) => show(v)),
    show(dot(system.d, q), 4),
  ];
  const rows = [
    row("start", start),
    row("selected", selected),
    row("entropic point", least.entropic),
  ];
  if (descent?.limit) rows.splice(2, 0, row("finite steps", descent.limit));
  const names = system.d.map((_, a) => `q${"₁₂₃₄"[a]}`);
  figure.tabulate("Coordinates and trace", ["point", ...names, "trace"], rows);
}

function say(state: State, { system, selected, least, descent, path }: Found): string {
  const gap = dot(system.d, selected) - least.value;
  const flowGap = norm(subtract(path[path.length - 1]!, selected));
  const far = norm(subtract(selected, least.entropic));
  const tie = least.vertices.length > 1;
  const paper = text(state, "system") === "paper";
  const parts = [
    `From a start of size ε = ${show(number(state, "eps"), 2)}, training selects the ` +
      "solution with trace " +
      `${show(dot(system.d, selected), 4)}; the least possible trace is ${show(least.value, 4)}` +
      `${gap < 5e-4 ? ", so it is practically reached" : ""}.`,
  ];
  if (flowGap < 1e-5) parts.push("The path ends exactly at the Bregman projection.");
  if (paper && number(state, "shape") !== 1) {
    const kept = number(state, "shape") ** 2;
    parts.push(
      `Training cannot change q₁/q₂ = ${show(kept, 2)} here, because both are measured ` +
        "alike: the shape of the start " +
        `decides, and the entropic point is ${show(far, 2)} away.`,
    );
  } else if (tie) {
    parts.push(
      "Several solutions have the least trace; as ε falls, training prefers the entropic " +
        `point, now ${show(far, 2)} away.`,
    );
  } else {
    parts.push(
      "One solution has the least trace; training approaches it as ε falls, and is now " +
        `${show(far, 2)} away.`,
    );
  }
  if (descent) {
    parts.push(
      descent.limit
        ? `With finite steps η = ${show(number(state, "step"), 2)} gradient descent ends ` +
            `${show(norm(subtract(descent.limit, selected)), 2)} away from the selected ` +
            `solution, after ${count(descent.steps)} steps.`
        : `With steps η = ${show(number(state, "step"), 2)} gradient descent does not ` +
            "settle: the step is too large.",
    );
  }
  return parts.join(" ");
}

function drawAll(state: State, [figure]: readonly Figure[]): string {
  const found = find(state);
  const name = text(state, "system") as SystemName;
  drawMap(figure!, name, found);
  tabulate(figure!, found);
  const point = (q: Vector): string => q.map((value) => show(value, 4)).join(", ");
  figure!.describe(
    `${name === "paper" ? "The plane of q1 and q2" : "The triangle of solutions"}, with the ` +
      "training path. It ends at " +
      `q = ${point(found.selected)}. The entropic point is ${point(found.least.entropic)}.` +
      (found.descent?.limit
        ? ` Gradient descent with steps of ${show(number(state, "step"), 2)} ends at ` +
          `${point(found.descent.limit)}.`
        : ""),
  );
  return say(state, found);
}

export const selection: Scene = {
  id: "selection",
  tab: "3 Which interpolant?",
  title: "Which interpolant?",
  lead:
    "When there are fewer measurements than unknowns, many predictors fit the data " +
    "perfectly. Training picks one of " +
    "them. Which one depends on how small the start is, and a little on the step size.",
  details: [
    "If the measurement matrices commute, only numbers q ≥ 0 are learned, one for each " +
      "common eigenspace, and the data say " +
      "Bq = y. The path is the flow dq/dt = −4 (q/d) B′(Bq − y)/n with block sizes d; it " +
      "keeps q positive.",
    "Its limit is the solution of Bq = y that is nearest to the start in the Bregman " +
      "divergence of the entropy (Theorem 4.3), " +
      "computed here separately by Newton's method. As the start shrinks, the limit tends to " +
      "the solutions of least trace Σ d q, " +
      "and among those to the one of least Σ d q log q, the entropic point.",
    "The system of experiment 6 of the paper has four coordinates, d = (1, 1, 2, 3): q₁ + q₂ " +
      "+ q₃ = 1 and q₃ + q₄ = 0.3. The second " +
      "system is one measurement q₁ + b q₂ + 0.6 q₃ = 1; all of its solutions form a " +
      "triangle, and points outside are seen from the origin.",
    "Finite steps: gradient descent on the weights multiplies q by (1 − (2η/d) g)². Its " +
      "limit differs from the flow's by O(η) (Theorem 4.8).",
  ],
  controls: [
    {
      kind: "choice",
      key: "system",
      label: "System",
      initial: "paper",
      options: [
        { value: "paper", label: "experiment 6 of the paper" },
        { value: "free", label: "one measurement, free weight" },
      ],
    },
    {
      kind: "slider",
      key: "eps",
      label: "Size ε of the start",
      min: 0.001,
      max: 1,
      count: 60,
      logarithmic: true,
      initial: 0.316227766017,
      text: (v) => show(v, 2),
    },
    {
      kind: "slider",
      key: "shape",
      label: "Shape of the start",
      min: 0.25,
      max: 4,
      count: 16,
      logarithmic: true,
      initial: 1,
      text: (v) => (v === 1 ? "equal" : `q₁ : q₂ = ${show(v * v, 2)}`),
    },
    {
      kind: "slider",
      key: "weight",
      label: "Weight b of q₂ in the measurement",
      min: 0.5,
      max: 1.5,
      count: 40,
      initial: 0.85,
      text: (v) => show(v),
    },
    { kind: "switch", key: "finite", label: "Finite steps", initial: false },
    {
      kind: "slider",
      key: "step",
      label: "Step η",
      min: 2 ** -8,
      max: 2,
      count: 36,
      logarithmic: true,
      initial: 0.25,
      text: (v) => show(v, 2),
    },
  ],
  presets: [
    { name: "Tiny start", values: { eps: 0.001 } },
    { name: "Uneven start", values: { shape: 0.5, eps: 0.05 } },
    { name: "Large steps", values: { finite: true, step: 0.5, eps: 0.316227766017 } },
    { name: "Triangle", values: { system: "free", eps: 0.1 } },
    { name: "Triangle with a tie", values: { system: "free", weight: 1, eps: 0.01 } },
  ],
  uses: (key, state) =>
    key === "shape"
      ? state["system"] === "paper"
      : key === "weight"
        ? state["system"] === "free"
        : key === "step"
          ? state["finite"] === true
          : true,
  figures: [{ title: "The solutions, and the path of training", ratio: 0.86, widest: 520 }],
  draw: drawAll,
};
