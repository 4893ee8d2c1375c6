/** Eigenvalues of symmetric matrices by cyclic Jacobi rotations. */

import type { Matrix } from "./matrix";

const SWEEPS = 60;

/** Eigenvalues of a symmetric matrix, ascending, and unit eigenvectors in the same order. */
export function eigen(A: Matrix): { values: number[]; vectors: number[][] } {
  const n = A.length;
  const a = A.map((row) => [...row]);
  const v = A.map((_, i) => A.map((_, j) => (i === j ? 1 : 0)));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    let off = 0;
    let size = 0;
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        const square = a[i]![j]! ** 2;
        size += square;
        if (i !== j) off += square;
      }
    }
    if (!(off > 1e-32 * size)) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) rotate(a, v, p, q);
  }
  const order = a.map((_, i) => i).sort((i, j) => a[i]![i]! - a[j]![j]!);
  return {
    values: order.map((i) => a[i]![i]!),
    vectors: order.map((i) => v.map((row) => row[i]!)),
  };
}

/** Make the entry (p, q) of `a` zero, and apply the same rotation to the columns of `v`. */
function rotate(a: number[][], v: number[][], p: number, q: number): void {
  const off = a[p]![q]!;
  if (off === 0) return;
  const ratio = (a[q]![q]! - a[p]![p]!) / (2 * off);
  const t = (ratio >= 0 ? 1 : -1) / (Math.abs(ratio) + Math.hypot(1, ratio));
  const c = 1 / Math.hypot(1, t);
  const s = t * c;
  const turnColumns = (rows: number[][]): void => {
    for (const row of rows) {
      const [x, y] = [row[p]!, row[q]!];
      row[p] = c * x - s * y;
      row[q] = s * x + c * y;
    }
  };
  turnColumns(a);
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [a[p]![k]!, a[q]![k]!];
    a[p]![k] = c * x - s * y;
    a[q]![k] = s * x + c * y;
  }
  turnColumns(v);
}
