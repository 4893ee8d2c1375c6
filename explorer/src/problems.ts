/** The problems that the scenes show. Python reads the same file and solves the same problems. */

import type { Matrix, Vector } from "./core/matrix";
import { multiply } from "./core/matrix";
import { noiseless, type Samples } from "./core/regression";
import type { System } from "./core/selection";
import data from "./data/problems.json";

export type Target = keyof typeof data.fiber.targets;

export interface FiberProblem {
  readonly samples: Samples;
  readonly target: Matrix;
  readonly first: Matrix;
  readonly second: Matrix;
}

/** First scene: two starts U and UR on one fiber; R turns by `degrees`, and reflects if asked. */
export function fiberProblem(
  target: Target,
  size: number,
  degrees: number,
  mirrored: boolean,
): FiberProblem {
  const { X, start, targets } = data.fiber;
  const angle = (degrees * Math.PI) / 180;
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  const R = mirrored
    ? [
        [c, s],
        [s, -c],
      ]
    : [
        [c, -s],
        [s, c],
      ];
  const first = start.map((row) => row.map((value) => size * value));
  return {
    samples: noiseless(X, targets[target]),
    target: targets[target],
    first,
    second: multiply(first, R),
  };
}

export interface RateProblem {
  readonly X: Matrix;
  readonly target: Matrix;
  readonly start: Matrix;
  readonly smallest: number;
}

export const RATE_DIMENSION = data.rate.X[0]!.length;
export const RATE_UNKNOWNS = 2 * RATE_DIMENSION - 1;

/** Second scene: n Gaussian samples, a target with eigenvalues 1 and 1/kappa, a start near it. */
export function rateProblem(kappa: number, n: number): RateProblem {
  const { X, direction, distance } = data.rate;
  const smallest = 1 / kappa;
  const target = direction.map((_, i) => [i === 0 ? 1 : 0, i === 1 ? Math.sqrt(smallest) : 0]);
  const start = target.map((row, i) =>
    row.map((value, j) => value + distance * Math.sqrt(smallest) * direction[i]![j]!),
  );
  return { X: X.slice(0, n), target, start, smallest };
}

export type SystemName = keyof typeof data.selection;

/** Third scene: the system of experiment 6, or one measurement b'q = 1 with b_2 free. */
export function selectionSystem(name: SystemName, weight: number): System {
  const system = data.selection[name];
  if (name === "paper") return system;
  return { ...system, B: system.B.map((row) => row.map((b, a) => (a === 1 ? weight : b))) };
}

/** The start eps^2 (shape, 1/shape, 1, ...). */
export const selectionStart = (system: System, eps: number, shape: number): number[] =>
  system.d.map((_, a) => eps * eps * (a === 0 ? shape : a === 1 ? 1 / shape : 1));

export const RECOVERY_SETS = data.recovery.length;
export const RECOVERY_SAMPLES = data.recovery[0]!.X.length;

export interface RecoveryProblem {
  readonly samples: Samples;
  readonly target: Vector;
  /** What posquad says for 1, 2, ... samples of this data set. */
  readonly statuses: readonly string[];
}

/** Fourth scene: the first n samples of a data set, counted from 1. */
export function recoveryProblem(set: number, n: number): RecoveryProblem {
  const { X, u, status } = data.recovery[set - 1]!;
  return {
    samples: noiseless(
      X.slice(0, n),
      u.map((value) => [value]),
    ),
    target: u,
    statuses: status,
  };
}
