/** The Play button: moves one slider to its end, and stops when asked. */

import { button } from "./controls";
import { positionOf, type Slider, valueAt } from "./state";

const DURATION = 5000; // milliseconds from one end to the other

export interface Player {
  readonly element: HTMLElement;
  readonly stop: () => void;
}

/** With reduced motion, the slider goes to its end at once. */
export function player(slider: Slider, read: () => number, write: (value: number) => void): Player {
  let request = 0;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const element = button("Play", () => (request ? stop() : play()));
  const say = (): void => {
    element.textContent = request ? "Stop" : still.matches ? "Show the end" : "Play";
  };
  const stop = (): void => {
    cancelAnimationFrame(request);
    request = 0;
    say();
  };
  const play = (): void => {
    if (still.matches) return write(slider.max);
    const first = positionOf(slider, read());
    const from = first >= slider.count ? 0 : first;
    const began = performance.now();
    const advance = (now: number): void => {
      const moved = Math.max(0, now - began) / DURATION;
      const position = Math.min(slider.count, Math.round(from + moved * slider.count));
      write(valueAt(slider, position));
      request = position < slider.count ? requestAnimationFrame(advance) : 0;
      say();
    };
    request = requestAnimationFrame(advance);
    say();
  };
  still.addEventListener("change", stop);
  say();
  return { element, stop };
}
