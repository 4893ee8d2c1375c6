/** Small dense matrices, stored by rows. */

export type Vector = readonly number[];
export type Matrix = readonly Vector[];

export const dot = (a: Vector, b: Vector): number =>
  a.reduce((sum, value, k) => sum + value * b[k]!, 0);

export const norm = (a: Vector): number => Math.hypot(...a);

export const subtract = (a: Vector, b: Vector): number[] => a.map((value, k) => value - b[k]!);

export const transpose = (A: Matrix): number[][] =>
  (A[0] ?? []).map((_, j) => A.map((row) => row[j]!));

export const times = (A: Matrix, v: Vector): number[] => A.map((row) => dot(row, v));

export function multiply(A: Matrix, B: Matrix): number[][] {
  const columns = transpose(B);
  return A.map((row) => columns.map((column) => dot(row, column)));
}

/** The predictor Q = UU'. */
export const predictor = (U: Matrix): number[][] => U.map((a) => U.map((b) => dot(a, b)));

/** The Frobenius norm of A - B. */
export const distance = (A: Matrix, B: Matrix): number =>
  norm(A.map((row, i) => norm(subtract(row, B[i]!))));

/** Solve Ax = b by elimination with partial pivoting; null if a pivot vanishes. */
export function solve(A: Matrix, b: Vector): number[] | null {
  const n = b.length;
  const rows = A.map((row, i) => [...row, b[i]!]);
  for (let k = 0; k < n; k++) {
    let pivot = k;
    for (let i = k + 1; i < n; i++) {
      if (Math.abs(rows[i]![k]!) > Math.abs(rows[pivot]![k]!)) pivot = i;
    }
    [rows[k], rows[pivot]] = [rows[pivot]!, rows[k]!];
    const top = rows[k]!;
    if (!(Math.abs(top[k]!) > 0)) return null;
    for (let i = k + 1; i < n; i++) {
      const row = rows[i]!;
      const factor = row[k]! / top[k]!;
      for (let j = k; j <= n; j++) row[j] = row[j]! - factor * top[j]!;
    }
  }
  const x = new Array<number>(n).fill(0);
  for (let i = n - 1; i >= 0; i--) {
    const row = rows[i]!;
    let value = row[n]!;
    for (let j = i + 1; j < n; j++) value -= row[j]! * x[j]!;
    x[i] = value / row[i]!;
  }
  return x.every(Number.isFinite) ? x : null;
}
