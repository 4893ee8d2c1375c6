/** The answers that the tests compare with posquad's, one kind of case each. */

import * as core from "./core";
import type { Matrix, Vector } from "./core";
import * as problems from "./problems";

type Input = Record<string, never>;

interface RateInput {
  kappa: number;
  n: number;
}
interface SelectionInput {
  B: Matrix;
  y: Vector;
  d: Vector;
  q0: Vector;
}

const KINDS: Record<string, (input: never) => unknown> = {
  gradient: ({ X, y, U }: { X: Matrix; y: Vector; U: Matrix }) => [
    core.loss({ X, y }, U),
    ...core.gradient({ X, y }, U).flat(),
  ],
  "predictor-step": ({ Q, G, step }: { Q: Matrix; G: Matrix; step: number }) =>
    core.predictorStep(Q, G, step),
  flow: (input: {
    target: problems.Target;
    size: number;
    degrees: number;
    mirrored: boolean;
    times: Vector;
  }) => {
    const { samples, second } = problems.fiberProblem(
      input.target,
      input.size,
      input.degrees,
      input.mirrored,
    );
    return core.gradientFlow(samples, second, input.times, 1e-13).slice(1);
  },
  spectrum: ({ kappa, n }: RateInput) => {
    const { X, target } = problems.rateProblem(kappa, n);
    return core.effectiveSpectrum(X, target);
  },
  descent: ({ kappa, n, step, steps }: RateInput & { step: number; steps: number }) => {
    const { X, target, start } = problems.rateProblem(kappa, n);
    const samples = core.noiseless(X, target);
    return core.descent(samples, start, step, steps);
  },
  "oracle-step": ({ largest, smallest, m, M }: Record<string, number>) =>
    core.oracleStep(largest!, smallest!, m!, M!),
  projection: ({ q0, ...system }: SelectionInput) => core.bregmanProjection(system, q0),
  "mirror-flow": ({ q0, times, ...system }: SelectionInput & { times: Vector }) =>
    core.mirrorFlow(system, q0, times, 1e-12).slice(1),
  "descent-limit": ({ q0, step, ...system }: SelectionInput & { step: number }) =>
    core.reducedDescent(system, q0, step).limit,
  "minimum-trace": (system: Omit<SelectionInput, "q0">) => {
    const found = core.minimumTrace(system);
    return found && [found.value, ...found.entropic];
  },
  minima: ({ set, n }: { set: number; n: number }) => {
    const found = core.localMinima(problems.recoveryProblem(set, n).samples);
    return found
      .map(({ u, fraction }) => [fraction, ...core.predictor(u.map((v) => [v])).flat()])
      .sort((a, b) => (Math.abs(a[0]! - b[0]!) > 1e-9 ? a[0]! - b[0]! : a[1]! - b[1]!));
  },
  "direction-loss": ({ set, n, s }: { set: number; n: number; s: Vector }) =>
    core.directionLoss(problems.recoveryProblem(set, n).samples)(s[0]!, s[1]!, s[2]!),
};

/** The numbers of a case, in the order of posquad's answer; null if there is no answer. */
export function answer(kind: string, input: Input): unknown {
  return KINDS[kind]!(input as never);
}
