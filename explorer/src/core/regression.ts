/** The square loss of a positive quadratic network: gradient, descent, flow and curvature. */

import { integrate } from "./flow";
import { eigen } from "./jacobi";
import {
  dot,
  type Matrix,
  multiply,
  predictor,
  subtract,
  times,
  transpose,
  type Vector,
} from "./matrix";

/** Inputs, one row each, and responses; the loss is (1/2n) sum_i (|U'x_i|^2 - y_i)^2. */
export interface Samples {
  readonly X: Matrix;
  readonly y: Vector;
}

/** The responses x'UU'x of a factor. */
export const responses = (X: Matrix, U: Matrix): number[] =>
  multiply(X, U).map((row) => dot(row, row));

export const noiseless = (X: Matrix, U: Matrix): Samples => ({ X, y: responses(X, U) });

export function loss({ X, y }: Samples, U: Matrix): number {
  const gap = subtract(responses(X, U), y);
  return dot(gap, gap) / (2 * y.length);
}

/** The factor gradient (2/n) sum_i (|U'x_i|^2 - y_i) x_i x_i'U. */
export function gradient(samples: Samples, U: Matrix): number[][] {
  const r = U[0]!.length;
  const G = flatGradient(samples, r)(Float64Array.from(U.flat()));
  return U.map((_, a) => Array.from(G.subarray(a * r, (a + 1) * r)));
}

/** The gradient of factors with r columns, stored by rows; the next call overwrites the result. */
function flatGradient({ X, y }: Samples, r: number): (U: Float64Array) => Float64Array {
  const [n, d] = [y.length, X[0]!.length];
  const rows = Float64Array.from(X.flat());
  const [G, z] = [new Float64Array(d * r), new Float64Array(r)];
  return (U) => {
    G.fill(0);
    for (let i = 0; i < n; i++) {
      z.fill(0);
      for (let a = 0; a < d; a++) {
        const x = rows[i * d + a]!;
        for (let j = 0; j < r; j++) z[j]! += x * U[a * r + j]!;
      }
      let fit = 0;
      for (let j = 0; j < r; j++) fit += z[j]! * z[j]!;
      const weight = (2 * (fit - y[i]!)) / n;
      for (let a = 0; a < d; a++) {
        const x = weight * rows[i * d + a]!;
        for (let j = 0; j < r; j++) G[a * r + j]! += x * z[j]!;
      }
    }
    return G;
  };
}

/**
 * Gradient descent U - step grad L(U) (`eq:factor-gradient-descent`), from `start`.
 *
 * `visit` sees each factor after the start, stored by rows, and ends the run by returning false.
 */
export function descent(
  samples: Samples,
  start: Matrix,
  step: number,
  steps: number,
  visit: (U: Float64Array) => boolean = () => true,
): number[][] {
  const r = start[0]!.length;
  const slope = flatGradient(samples, r);
  const U = Float64Array.from(start.flat());
  for (let k = 0; k < steps; k++) {
    const G = slope(U);
    for (let a = 0; a < U.length; a++) U[a]! -= step * G[a]!;
    if (!visit(U)) break;
  }
  return start.map((_, a) => Array.from(U.subarray(a * r, (a + 1) * r)));
}

/** The distance |UU' - Q| of a factor with r columns, stored by rows, from a predictor. */
export function predictorError(U: Float64Array, r: number, Q: Matrix): number {
  let sum = 0;
  Q.forEach((row, a) => {
    for (let b = 0; b <= a; b++) {
      let entry = -row[b]!;
      for (let j = 0; j < r; j++) entry += U[a * r + j]! * U[b * r + j]!;
      sum += (a === b ? 1 : 2) * entry * entry;
    }
  });
  return Math.sqrt(sum);
}

/** The gradient flow dU/dt = -grad L(U) at increasing times, with the start as first record. */
export function gradientFlow(
  samples: Samples,
  start: Matrix,
  at: Vector,
  tolerance?: number,
): number[][][] {
  const r = start[0]!.length;
  const fold = (u: Vector): number[][] => start.map((_, a) => u.slice(a * r, (a + 1) * r));
  const slope = flatGradient(samples, r);
  const field = (u: Vector): number[] => Array.from(slope(Float64Array.from(u)), (value) => -value);
  return integrate(field, start.flat(), at, tolerance).map(fold);
}

/** The predictor's recursion (I - 2 step G) Q (I - 2 step G) (`eq:exact-discrete-congruence`). */
export function predictorStep(Q: Matrix, G: Matrix, step: number): number[][] {
  const M = G.map((row, i) => row.map((value, j) => (i === j ? 1 : 0) - 2 * step * value));
  return multiply(multiply(M, Q), M);
}

/**
 * Eigenvalues of the Hessian of L in the entries of U, ascending, at a factor that interpolates.
 *
 * There the Hessian is J'J/n with J_i = 2 x_i (U'x_i)'. Along the fiber it has r(r-1)/2 zeros, the
 * naive Hessian's; the others are the effective eigenvalues (Theorem 3.1, `thm:effective-hessian`).
 */
export function factorSpectrum(X: Matrix, U: Matrix): number[] {
  const rows = X.map((x) => {
    const z = times(transpose(U), x);
    return x.flatMap((value) => z.map((entry) => 2 * value * entry));
  });
  const columns = transpose(rows);
  return eigen(columns.map((a) => columns.map((b) => dot(a, b) / X.length))).values;
}

/** The effective eigenvalues at a factor that interpolates; those within rounding of 0 are 0. */
export function effectiveSpectrum(X: Matrix, U: Matrix): number[] {
  const r = U[0]!.length;
  const all = factorSpectrum(X, U);
  const rounding = 1e-12 * all[all.length - 1]!;
  return all.slice((r * (r - 1)) / 2).map((value) => (Math.abs(value) <= rounding ? 0 : value));
}

/** Factor by which a step changes the error in its slowest mode: max |1 - step lambda|. */
export const contraction = (spectrum: Vector, step: number): number =>
  Math.max(...spectrum.map((value) => Math.abs(1 - step * value)));

/**
 * The oracle step alpha* / L*^2 (Theorem 3.7, `thm:local-gradient-descent-convergence`).
 *
 * `m` and `M` bound the normal operator; the paper's values for samples are 1 and d + 3.
 */
export function oracleStep(largest: number, smallest: number, m: number, M: number): number {
  const [beta, sigma] = [Math.sqrt(largest), Math.sqrt(smallest)];
  const rho = (m * sigma) / (4 * M);
  const L = 2 * M * (2 * beta + rho) * (beta + rho);
  return (m * smallest) / 2 / L ** 2;
}

export { predictor };
