/** The computation of the second scene: a run of gradient descent, and what is predicted of it. */

import { distance, norm, predictor } from "../core/matrix";
import {
  contraction,
  descent,
  effectiveSpectrum,
  noiseless,
  oracleStep,
  predictorError,
} from "../core/regression";
import { RATE_DIMENSION, RATE_UNKNOWNS, rateProblem } from "../problems";
import { number, type State } from "../ui/state";

const MOST_PRODUCTS = 80_000; // samples times steps, so that a redraw stays short
const MOST_STEPS = 12_000;
const FEWEST_STEPS = 40;
const FLOOR = 1e-10; // relative error at which a run ends
export const CEILING = 1e3;

export interface Run {
  readonly n: number;
  readonly spectrum: number[];
  readonly step: number;
  readonly oracle: number;
  readonly limit: number;
  readonly factor: number;
  /** Relative errors |Q_k - Q*| / |Q*|. */
  readonly errors: number[];
  readonly diverged: boolean;
}

/** Gradient descent from near the target, and what the effective spectrum predicts of it. */
export function run(state: State): Run {
  const n = Math.max(1, Math.round(number(state, "ratio") * RATE_UNKNOWNS));
  const { X, target, start, smallest } = rateProblem(number(state, "kappa"), n);
  const spectrum = effectiveSpectrum(X, target);
  const limit = 2 / spectrum[spectrum.length - 1]!;
  const step = number(state, "step") * limit;
  const factor = contraction(spectrum, step);
  const goal = predictor(target);
  const size = norm(goal.flat());
  const visible = contraction(
    spectrum.filter((value) => value > 0),
    step,
  );
  const needed = visible < 1 ? Math.ceil(Math.log(1e-7) / Math.log(visible)) : 60;
  const affordable = Math.min(MOST_STEPS, Math.floor(MOST_PRODUCTS / n));
  const steps = Math.min(affordable, Math.max(FEWEST_STEPS, needed));
  const samples = noiseless(X, target);
  const errors = [distance(predictor(start), goal) / size];
  descent(samples, start, step, steps, (U) => {
    const now = predictorError(U, 2, goal) / size;
    if (!(now < CEILING)) return false;
    errors.push(now);
    return now >= FLOOR;
  });
  return {
    n,
    spectrum,
    step,
    limit,
    factor,
    errors,
    oracle: oracleStep(1, smallest, 1, RATE_DIMENSION + 3),
    diverged: errors.length <= steps && errors[errors.length - 1]! >= FLOOR,
  };
}

/** The factor per step measured over the last third of the run. */
export function measured(errors: readonly number[]): number {
  const last = errors.length - 1;
  const from = Math.floor((2 * last) / 3);
  return last > from ? (errors[last]! / errors[from]!) ** (1 / (last - from)) : NaN;
}
