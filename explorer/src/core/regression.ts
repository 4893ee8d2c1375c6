/** The square loss of a positive quadratic network: gradient, descent, flow and curvature. */

import { integrate } from "./flow";
import { eigen } from "./jacobi";
import { dot, type Matrix, multiply, predictor, subtract, times, transpose, type Vector } from "./matrix";

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
export function gradient({ X, y }: Samples, U: Matrix): number[][] {
  const [d, r] = [U.length, U[0]!.length];
  const G = U.map((row) => row.map(() => 0));
  for (let i = 0; i < y.length; i++) {
    const x = X[i]!;
    const z = new Array<number>(r).fill(0);
    for (let a = 0; a < d; a++) for (let j = 0; j < r; j++) z[j]! += x[a]! * U[a]![j]!;
    const weight = (2 * (dot(z, z) - y[i]!)) / y.length;
    for (let a = 0; a < d; a++) for (let j = 0; j < r; j++) G[a]![j]! += weight * x[a]! * z[j]!;
  }
  return G;
}

/** One step of gradient descent, U - step grad L(U) (`eq:factor-gradient-descent`). */
export function descend(samples: Samples, U: Matrix, step: number): number[][] {
  const G = gradient(samples, U);
  return U.map((row, a) => row.map((value, j) => value - step * G[a]![j]!));
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
  const field = (u: Vector): number[] => gradient(samples, fold(u)).flat().map((value) => -value);
  return integrate(field, start.flat(), at, tolerance).map(fold);
}

/** The predictor's recursion (I - 2 step G) Q (I - 2 step G) (`eq:exact-predictor-recursion`). */
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

/** The effective eigenvalues at a factor that interpolates; those within rounding of zero are zero. */
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
