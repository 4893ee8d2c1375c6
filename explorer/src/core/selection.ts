/** Which interpolant training selects, in joint spectral coordinates of commuting measurements. */

import { integrate } from "./flow";
import { dot, type Matrix, norm, solve, subtract, times, transpose, type Vector } from "./matrix";

/** The system Bq = y, q >= 0, with block sizes d; the rows of B are independent. */
export interface System {
  readonly B: Matrix;
  readonly y: Vector;
  readonly d: Vector;
}

const MAX_NEWTON = 300;

/**
 * The point of least Bregman divergence from q0 among the q >= 0 with Bq = y; null without one.
 *
 * Newton's method on the dual: q = q0 exp(B'v / d), where v minimises sum_a d_a q_a - y'v
 * (`eq:finite-initialization-bregman-projection`). Steps are halved until the dual falls.
 */
export function bregmanProjection({ B, y, d }: System, q0: Vector): number[] | null {
  const columns = transpose(B);
  const point = (v: Vector) => q0.map((q, a) => q * Math.exp(dot(columns[a]!, v) / d[a]!));
  const dual = (v: Vector) => dot(d, point(v)) - dot(y, v);
  let v = y.map(() => 0);
  for (let k = 0; k < MAX_NEWTON; k++) {
    const q = point(v);
    const gap = subtract(times(B, q), y);
    const hessian = B.map((row) =>
      B.map((other) => row.reduce((sum, b, a) => sum + (b * other[a]! * q[a]!) / d[a]!, 0)),
    );
    const move = solve(hessian, gap);
    if (move === null) return null;
    const decrease = dot(gap, move);
    // The quadratic model is exact to rounding here: one full step ends the iteration.
    if (decrease <= 1e-22 * Math.abs(dot(y, y))) {
      return point(subtract(v, move));
    }
    const before = dual(v);
    let t = Math.min(1, 20 / Math.max(...times(columns, move).map((m, a) => Math.abs(m / d[a]!))));
    for (let tries = 0; tries < 60; tries++, t /= 2) {
      const after = dual(v.map((value, i) => value - t * move[i]!));
      if (after <= before - 1e-4 * t * decrease || t * decrease <= 1e-14 * Math.abs(before)) break;
    }
    v = v.map((value, i) => value - t * move[i]!);
  }
  return null;
}

/** The gradient B'(Bq - y)/n in the coordinates q. */
export function reducedGradient({ B, y }: System, q: Vector): number[] {
  const gap = subtract(times(B, q), y);
  return times(transpose(B), gap).map((value) => value / y.length);
}

/**
 * The mirror flow dq_a/dt = -(4 q_a / d_a) g_a(q) at increasing times, the start first.
 *
 * Logarithms are integrated, so that q stays positive (`prop:exact-weighted-mirror-flow`).
 */
export function mirrorFlow(system: System, q0: Vector, at: Vector, tolerance?: number): number[][] {
  const logarithms = integrate(
    (z) => reducedGradient(system, z.map(Math.exp)).map((g, a) => (-4 * g) / system.d[a]!),
    q0.map(Math.log),
    at,
    tolerance,
    1, // an error of log q is a relative error of q
  );
  return logarithms.map((z) => z.map(Math.exp));
}

/** The step q_a (1 - (2 step / d_a) g_a)^2 of `eq:reduced-predictor-gradient-descent`. */
export function reducedStep(system: System, q: Vector, step: number): number[] {
  const g = reducedGradient(system, q);
  return q.map((value, a) => value * (1 - ((2 * step) / system.d[a]!) * g[a]!) ** 2);
}

export interface Descent {
  readonly path: number[][];
  readonly limit: number[] | null;
  readonly steps: number;
}

/**
 * The path of gradient descent with a fixed step, and its limit; null if there is none.
 *
 * At a relative residual of 1e-9 the Bregman projection of the current point replaces the
 * remaining steps; the difference is below rounding (Theorem 4.8,
 * `thm:first-order-discrete-selection-error`). `kept` is the number of points kept of the path.
 */
export function reducedDescent(
  system: System,
  q0: Vector,
  step: number,
  kept = 400,
  maxSteps = 100_000,
): Descent {
  const { B, y } = system;
  const path = [[...q0]];
  let q: number[] = [...q0];
  for (let k = 0; k <= maxSteps; k++) {
    const gap = norm(subtract(times(B, q), y)) / norm(y);
    if (!Number.isFinite(gap) || gap > 1e6) return { path, limit: null, steps: k };
    if (gap <= 1e-9) {
      const stable = step * largestRate(system, q) < 2;
      return { path, limit: stable ? bregmanProjection(system, q) : null, steps: k };
    }
    q = reducedStep(system, q, step);
    if (q.some((value) => !(value > 0))) return { path, limit: null, steps: k };
    if (path.length < kept) path.push(q);
  }
  return { path, limit: null, steps: maxSteps };
}

/** The largest rate of the linearized flow at q: the norm of (4/n) B diag(q/d) B'. */
export function largestRate({ B, y, d }: System, q: Vector): number {
  const M = B.map((row) =>
    B.map((other) => row.reduce((sum, b, a) => sum + (4 * b * other[a]! * q[a]!) / d[a]!, 0)),
  );
  let v = y.map((_, i) => 1 + 0.1 * i);
  let value = 0;
  for (let k = 0; k < 200; k++) {
    const w = times(M, v);
    value = norm(w) / norm(v);
    v = w.map((entry) => entry / norm(w));
  }
  return value / y.length;
}

export interface MinimumTrace {
  readonly value: number;
  /** Vertices of the set of solutions of least trace; it is their convex hull. */
  readonly vertices: number[][];
  /** The entropic point: of least sum_a d_a q_a log q_a on that set. */
  readonly entropic: number[];
}

/** The solutions of least trace, by enumeration of all vertices; null if there is no solution. */
export function minimumTrace(system: System): MinimumTrace | null {
  const { d } = system;
  const found = vertices(system);
  if (found.length === 0) return null;
  const value = Math.min(...found.map((q) => dot(d, q)));
  const best = found.filter((q) => dot(d, q) <= value + 1e-10 * Math.abs(value));
  const support = d.map((_, a) => a).filter((a) => best.some((q) => q[a]! > 1e-12));
  const entropic = best.length === 1 ? best[0]! : entropyOnFace(system, support);
  return entropic && { value, vertices: best, entropic };
}

/** The vertices of {q >= 0, Bq = y}: basic solutions that are not negative. */
export function vertices({ B, y, d }: System): number[][] {
  const found: number[][] = [];
  for (const basis of subsets(d.length, y.length)) {
    const values = solve(
      B.map((row) => basis.map((a) => row[a]!)),
      y,
    );
    if (values === null || values.some((value) => value < -1e-12)) continue;
    const q = d.map(() => 0);
    basis.forEach((a, k) => (q[a] = Math.max(0, values[k]!)));
    if (!found.some((other) => norm(subtract(other, q)) < 1e-10)) found.push(q);
  }
  return found;
}

/** On a face of constant trace, least entropy is the Bregman projection of the vector of ones. */
function entropyOnFace({ B, y, d }: System, support: number[]): number[] | null {
  const pick = (row: Vector): number[] => support.map((a) => row[a]!);
  const found = bregmanProjection(
    { B: B.map(pick), y, d: pick(d) },
    support.map(() => 1),
  );
  return found && d.map((_, a) => (support.includes(a) ? found[support.indexOf(a)]! : 0));
}

function* subsets(m: number, k: number, from = 0): Generator<number[]> {
  if (k === 0) yield [];
  else
    for (let a = from; a < m; a++) for (const rest of subsets(m, k - 1, a + 1)) yield [a, ...rest];
}
