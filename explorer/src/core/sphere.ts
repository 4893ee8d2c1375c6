/** Recovery of a matrix uu' of rank one in three dimensions, on the sphere of directions of u. */

import { eigen } from "./jacobi";
import { dot, type Matrix, norm, solve, type Vector } from "./matrix";
import type { Samples } from "./regression";

/**
 * The least loss along a direction, as a fraction of the loss of the zero predictor.
 *
 * Along the unit vector s the responses are t z with z_i = (x_i's)^2 and t >= 0. The best t leaves
 * the fraction 1 - (y'z)^2 / (|y|^2 |z|^2) of |y|^2 / 2n: the squared sine of the angle between y
 * and z. Minimising over t makes no minimum and removes none, so its local minima on the sphere
 * are those of the loss.
 *
 * The two forms y'z (quadratic) and |z|^2 (quartic in s) are expanded once: an evaluation costs the
 * same for any number of samples.
 */
export function directionLoss({ X, y }: Samples): (a: number, b: number, c: number) => number {
  const square = dot(y, y);
  const quadratic = new Array<number>(6).fill(0);
  const quartic = new Array<number>(15).fill(0);
  X.forEach((x, i) => {
    const m = powers(x[0]!, x[1]!, x[2]!);
    m.quadratic.forEach((value, k) => (quadratic[k]! += y[i]! * value));
    m.quartic.forEach((value, k) => (quartic[k]! += value));
  });
  const [p, q, r, s, t, u] = quadratic as [number, number, number, number, number, number];
  const [e0, e1, e2, e3, e4, e5, e6, e7, e8, e9, e10, e11, e12, e13, e14] = quartic as number[] & {
    length: 15;
  };
  return (a, b, c) => {
    const [aa, bb, cc, ab, ac, bc] = [a * a, b * b, c * c, a * b, a * c, b * c];
    const fit = p * aa + q * bb + r * cc + s * ab + t * ac + u * bc;
    const size =
      aa * (e0! * aa + e3! * ab + e4! * ac + e9! * bb + e10! * cc + e12! * bc) +
      bb * (e1! * bb + e5! * ab + e6! * bc + e11! * cc + e13! * ac) +
      cc * (e2! * cc + e7! * ac + e8! * bc + e14! * ab);
    return size > 0 ? Math.min(1, Math.max(0, 1 - (fit * fit) / (square * size))) : 1;
  };
}

/** Coefficients of (x's)^2 and of (x's)^4 as polynomials in s. */
function powers(a: number, b: number, c: number) {
  const [aa, bb, cc, ab, ac, bc] = [a * a, b * b, c * c, a * b, a * c, b * c];
  return {
    quadratic: [aa, bb, cc, 2 * ab, 2 * ac, 2 * bc],
    quartic: [
      aa * aa,
      bb * bb,
      cc * cc,
      4 * aa * ab,
      4 * aa * ac,
      4 * bb * ab,
      4 * bb * bc,
      4 * cc * ac,
      4 * cc * bc,
      6 * aa * bb,
      6 * aa * cc,
      6 * bb * cc,
      12 * aa * bc,
      12 * bb * ac,
      12 * cc * ab,
    ],
  };
}

export interface LocalMinimum {
  readonly u: number[];
  /** The loss as a fraction of the loss of the zero predictor. */
  readonly fraction: number;
}

/**
 * The local minima of the loss, up to the sign of u, best first; for at least three samples in
 * general position.
 *
 * The planes x_i'u = 0 cut the space into regions in which the signs of the x_i'u do not change.
 * Newton's method starts once for each of them, at the least-squares solution of
 * x_i'u = sign_i sqrt(y_i).
 */
export function localMinima(samples: Samples): LocalMinimum[] {
  const { X, y } = samples;
  const zero = dot(y, y) / (2 * y.length);
  const gram = [0, 1, 2].map((a) =>
    [0, 1, 2].map((b) => X.reduce((sum, x) => sum + x[a]! * x[b]!, 0)),
  );
  const found: LocalMinimum[] = [];
  for (const signs of regions(X)) {
    const right = [0, 1, 2].map((a) =>
      X.reduce((sum, x, i) => sum + x[a]! * signs[i]! * Math.sqrt(y[i]!), 0),
    );
    const start = solve(gram, right);
    const u = start && newton(samples, start);
    if (!u) continue;
    const known = found.some(({ u: v }) => Math.abs(dot(u, v)) > (1 - 1e-9) * norm(u) * norm(v));
    if (!known) found.push({ u, fraction: derivatives(samples, u).value / zero });
  }
  return found.sort((a, b) => a.fraction - b.fraction);
}

/** The signs of x_i'u in every region, up to that of u; each has an edge x_i'u = x_j'u = 0. */
function regions(X: Matrix): Iterable<number[]> {
  const found = new Map<string, number[]>();
  for (let i = 0; i < X.length; i++) {
    for (let j = 0; j < i; j++) {
      const [[a, b, c], [d, e, f]] = [X[i] as number[], X[j] as number[]] as [number[], number[]];
      const edge = [b! * f! - c! * e!, c! * d! - a! * f!, a! * e! - b! * d!];
      for (const [first, second] of [
        [1, 1],
        [1, -1],
        [-1, 1],
        [-1, -1],
      ]) {
        const signs = X.map((x, k) =>
          k === i ? first! : k === j ? second! : dot(x, edge) < 0 ? -1 : 1,
        );
        const turned = signs.map((sign) => sign * signs[0]!);
        found.set(turned.join(), turned);
      }
    }
  }
  return found.values();
}

/** Gradient and Hessian of (1/2n) sum_i ((x_i'u)^2 - y_i)^2. */
export function derivatives({ X, y }: Samples, u: Vector) {
  const g = [0, 0, 0];
  const H = [
    [0, 0, 0],
    [0, 0, 0],
    [0, 0, 0],
  ];
  let value = 0;
  X.forEach((x, i) => {
    const z = dot(x, u);
    const gap = z * z - y[i]!;
    value += (gap * gap) / (2 * y.length);
    for (let a = 0; a < 3; a++) {
      g[a]! += (2 * gap * z * x[a]!) / y.length;
      for (let b = 0; b < 3; b++) H[a]![b]! += ((6 * z * z - 2 * y[i]!) * x[a]! * x[b]!) / y.length;
    }
  });
  return { value, g, H };
}

const REACH = 0.2; // longer steps, relative to u, would leave shallow valleys

/** A local minimum near u: short Newton steps, with the Hessian made positive far from it. */
function newton(samples: Samples, start: number[]): number[] | null {
  let u = start;
  for (let k = 0; k < 100; k++) {
    const { value, g, H } = derivatives(samples, u);
    const [low, , high] = eigen(H as Matrix).values as [number, number, number];
    const shift = low > 1e-9 * high ? 0 : 1e-3 * Math.abs(high) - low;
    const move = solve(
      H.map((row, i) => row.map((h, j) => h + (i === j ? shift : 0))),
      g,
    );
    if (move === null) return null;
    const full = u.map((entry, i) => entry - move[i]!);
    if (shift === 0 && norm(move) < 1e-9 * norm(u)) return full; // quadratic: the next is exact
    let t = Math.min(1, (REACH * norm(u)) / norm(move));
    while (
      t > 1e-6 &&
      !(
        derivatives(
          samples,
          u.map((e, i) => e - t * move[i]!),
        ).value < value
      )
    ) {
      t /= 2;
    }
    u = u.map((entry, i) => entry - t * move[i]!);
  }
  return null;
}
