/** What a scene is. */

import type { Figure, FigureOptions } from "./frame";
import type { Control, State, Value } from "./state";

export interface Preset {
  readonly name: string;
  readonly values: Readonly<Record<string, Value>>;
}

export interface Scene {
  readonly id: string;
  readonly tab: string;
  readonly title: string;
  readonly lead: string;
  /** What is computed, for readers who want to know; one paragraph each. */
  readonly details: readonly string[];
  readonly controls: readonly Control[];
  readonly presets: readonly Preset[];
  readonly figures: readonly FigureOptions[];
  /** The slider that the Play button moves to its end. */
  readonly played?: string;
  /** Whether a control has a meaning in this state; it is hidden otherwise. */
  readonly uses?: (key: string, state: State) => boolean;
  /**
   * Draw all figures and describe them; return the sentence on what is seen.
   *
   * A scene with too much work for one frame draws what it has, and asks to be drawn `again`.
   */
  readonly draw: (state: State, figures: readonly Figure[], again: () => void) => string;
}
