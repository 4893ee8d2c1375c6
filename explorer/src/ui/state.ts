/** The state of a scene: what its controls hold, and how a link carries it. */

export type Value = number | string | boolean;
export type State = Readonly<Record<string, Value>>;

/** A slider with `count` equal intervals, of the values or of their logarithms. */
export interface Slider {
  readonly kind: "slider";
  readonly key: string;
  readonly label: string;
  readonly min: number;
  readonly max: number;
  readonly count: number;
  readonly logarithmic?: boolean;
  readonly initial: number;
  readonly text: (value: number) => string;
}

export interface Choice {
  readonly kind: "choice";
  readonly key: string;
  readonly label: string;
  readonly options: readonly { readonly value: string; readonly label: string }[];
  readonly initial: string;
}

export interface Switch {
  readonly kind: "switch";
  readonly key: string;
  readonly label: string;
  readonly initial: boolean;
}

/** An angle of view in degrees, changed by dragging, arrow keys or buttons. */
export interface Angle {
  readonly kind: "angle";
  readonly key: string;
  readonly min: number;
  readonly max: number;
  readonly initial: number;
}

export type Control = Slider | Choice | Switch | Angle;

export const number = (state: State, key: string): number => state[key] as number;
export const text = (state: State, key: string): string => state[key] as string;
export const flag = (state: State, key: string): boolean => state[key] as boolean;

export const initial = (controls: readonly Control[]): State =>
  Object.fromEntries(controls.map((control) => [control.key, control.initial]));

/** The value at a position of a slider, 0 to `count`, to twelve digits. */
export function valueAt({ min, max, count, logarithmic }: Slider, position: number): number {
  const share = position / count;
  const exact = logarithmic ? min * (max / min) ** share : min + (max - min) * share;
  return Number(exact.toPrecision(12));
}

/** The position of a slider nearest to a value. */
export function positionOf(slider: Slider, value: number): number {
  const { min, max, count, logarithmic } = slider;
  const share = logarithmic
    ? Math.log(value / min) / Math.log(max / min)
    : (value - min) / (max - min);
  return Math.round(Math.min(1, Math.max(0, share)) * count);
}

/** The nearest value that a control can have; its initial value if the text means nothing. */
export function admit(control: Control, given: Value | null | undefined): Value {
  if (given === null || given === undefined || given === "") return control.initial;
  switch (control.kind) {
    case "choice":
      return control.options.some((o) => o.value === given) ? given : control.initial;
    case "switch":
      return given === true || given === "1"
        ? true
        : given === false || given === "0"
          ? false
          : control.initial;
    case "angle":
    case "slider": {
      const value = Number(given);
      if (!Number.isFinite(value)) return control.initial;
      const inside = Math.min(control.max, Math.max(control.min, value));
      return control.kind === "angle"
        ? Math.round(inside)
        : valueAt(control, positionOf(control, inside));
    }
  }
}

/** The part of a link after `#`: the scene and every value that is not the initial one. */
export function fragment(id: string, controls: readonly Control[], state: State): string {
  const parts = new URLSearchParams({ scene: id });
  for (const { key, initial: first } of controls) {
    const value = state[key]!;
    if (value !== first)
      parts.set(key, typeof value === "boolean" ? (value ? "1" : "0") : `${value}`);
  }
  return parts.toString();
}

/** The state that a link carries; whatever it does not say, or says wrongly, is initial. */
export function stateOf(parts: URLSearchParams, controls: readonly Control[]): State {
  return Object.fromEntries(controls.map((c) => [c.key, admit(c, parts.get(c.key))]));
}
