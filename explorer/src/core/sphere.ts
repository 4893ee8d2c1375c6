/** Recovery of a matrix uu' of rank one in three dimensions, seen on the sphere of directions of u. */

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
    const m = monomials(x[0]!, x[1]!, x[2]!, true);
    m.quadratic.forEach((value, k) => (quadratic[k]! += y[i]! * value));
    m.quartic.forEach((value, k) => (quartic[k]! += value));
  });
  return (a, b, c) => {
    const m = monomials(a, b, c, false);
    const [fit, size] = [dot(quadratic, m.quadratic), dot(quartic, m.quartic)];
    return size > 0 ? Math.min(1, Math.max(0, 1 - (fit * fit) / (square * size))) : 1;
  };
}

/** Products of two and of four entries; with the multinomial coefficients if asked for. */
function monomials(a: number, b: number, c: number, weighted: boolean) {
  const [two, four, six, twelve] = weighted ? [2, 4, 6, 12] : [1, 1, 1, 1];
  const [aa, bb, cc, ab, ac, bc] = [a * a, b * b, c * c, a * b, a * c, b * c];
  return {
    quadratic: [aa, bb, cc, two! * ab, two! * ac, two! * bc],
    quartic: [
      aa * aa, bb * bb, cc * cc,
      four! * aa * ab, four! * aa * ac, four! * bb * ab, four! * bb * bc, four! * cc * ac,
      four! * cc * bc, six! * aa * bb, six! * aa * cc, six! * bb * cc,
      twelve! * aa * bc, twelve! * bb * ac, twelve! * cc * ab,
    ],
  };
}

export interface LocalMinimum {
  readonly u: number[];
  /** The loss as a fraction of the loss of the zero predictor. */
  readonly fraction: number;
}

const POINTS = 1200;
const RADIUS = Math.cos(0.11); // the nearest neighbours only: valleys are narrow
let grid: { points: number[][]; near: number[][] } | undefined;

/** Points spread evenly over half of the sphere, and the neighbours of each, up to sign. */
function halfSphere() {
  if (grid) return grid;
  const golden = Math.PI * (3 - Math.sqrt(5));
  const points = Array.from({ length: POINTS }, (_, k) => {
    const z = (k + 0.5) / POINTS;
    const r = Math.sqrt(1 - z * z);
    return [r * Math.cos(k * golden), r * Math.sin(k * golden), z];
  });
  const near = points.map((p) =>
    points.flatMap((q, k) => (q !== p && Math.abs(dot(p, q)) > RADIUS ? [k] : [])),
  );
  grid = { points, near };
  return grid;
}

/**
 * The local minima of the loss, up to the sign of u, best first; for at least three samples.
 *
 * Newton's method starts at every grid point that is lower than its neighbours.
 */
export function localMinima(samples: Samples): LocalMinimum[] {
  const value = directionLoss(samples);
  const { points, near } = halfSphere();
  const heights = points.map((s) => value(s[0]!, s[1]!, s[2]!));
  const found: LocalMinimum[] = [];
  points.forEach((s, k) => {
    if (near[k]!.some((other) => heights[other]! < heights[k]!)) return;
    const u = newton(samples, scaled(samples, s));
    if (u === null) return;
    const closest = found.some(({ u: v }) => Math.abs(dot(u, v)) > (1 - 1e-9) * norm(u) * norm(v));
    if (!closest) found.push({ u, fraction: value(...unit(u)) });
  });
  return found.sort((a, b) => a.fraction - b.fraction);
}

const unit = (u: Vector): [number, number, number] => {
  const size = norm(u);
  return [u[0]! / size, u[1]! / size, u[2]! / size];
};

/** The multiple of s of least loss. */
function scaled({ X, y }: Samples, s: Vector): number[] {
  const z = X.map((x) => dot(x, s) ** 2);
  const factor = Math.sqrt(Math.max(1e-12, dot(y, z) / dot(z, z)));
  return s.map((value) => factor * value);
}

/** Gradient and Hessian of (1/2n) sum_i ((x_i'u)^2 - y_i)^2. */
export function derivatives({ X, y }: Samples, u: Vector) {
  const g = [0, 0, 0];
  const H = [[0, 0, 0], [0, 0, 0], [0, 0, 0]];
  let value = 0;
  X.forEach((x, i) => {
    const z = dot(x, u);
    const gap = z * z - y[i]!;
    value += gap * gap / (2 * y.length);
    for (let a = 0; a < 3; a++) {
      g[a]! += (2 * gap * z * x[a]!) / y.length;
      for (let b = 0; b < 3; b++) H[a]![b]! += ((6 * z * z - 2 * y[i]!) * x[a]! * x[b]!) / y.length;
    }
  });
  return { value, g, H };
}

/** A local minimum near u: Newton's method, with the Hessian made positive far from it. */
function newton(samples: Samples, start: number[]): number[] | null {
  let u = start;
  for (let k = 0; k < 100; k++) {
    const { value, g, H } = derivatives(samples, u);
    const [low, , high] = eigen(H as Matrix).values as [number, number, number];
    const shift = low > 1e-9 * high ? 0 : 1e-3 * Math.abs(high) - low;
    const move = solve(H.map((row, i) => row.map((h, j) => h + (i === j ? shift : 0))), g);
    if (move === null) return null;
    const full = u.map((entry, i) => entry - move[i]!);
    if (shift === 0 && norm(move) < 1e-9 * norm(u)) return full; // quadratic: the next is exact
    let t = 1;
    while (t > 1e-6 && !(derivatives(samples, u.map((e, i) => e - t * move[i]!)).value < value)) {
      t /= 2;
    }
    u = u.map((entry, i) => entry - t * move[i]!);
  }
  return null;
}
