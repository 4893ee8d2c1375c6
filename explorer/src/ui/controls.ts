/** The controls of a scene as elements of the page. */

import type { Scene } from "./scene";
import {
  type Control,
  number,
  positionOf,
  type Slider,
  type State,
  type Value,
  valueAt,
} from "./state";

type Change = (values: Readonly<Record<string, Value>>) => void;

export interface Panel {
  readonly element: HTMLElement;
  /** Show a state that did not come from the controls themselves. */
  readonly show: (state: State) => void;
}

/** Sliders, choices and switches; `change` is told every new value. */
export function panel(scene: Scene, change: Change): Panel {
  const element = document.createElement("div");
  element.className = "controls";
  const parts = scene.controls
    .filter((control) => control.kind !== "angle")
    .map((control) => ({ control, ...field(scene.id, control, change) }));
  element.append(...parts.map((part) => part.element));
  return {
    element,
    show(state) {
      for (const { control, element: row, set } of parts) {
        row.hidden = scene.uses ? !scene.uses(control.key, state) : false;
        set(state[control.key]!);
      }
    },
  };
}

interface Field {
  readonly element: HTMLElement;
  readonly set: (value: Value) => void;
}

function field(scene: string, control: Control, change: Change): Field {
  const id = `${scene}-${control.key}`;
  switch (control.kind) {
    case "slider":
      return sliderField(id, control, change);
    case "choice": {
      const row = document.createElement("p");
      const name = labelled(control.label, id);
      const select = document.createElement("select");
      select.id = id;
      for (const { value, label } of control.options) select.add(new Option(label, value));
      select.addEventListener("change", () => change({ [control.key]: select.value }));
      row.append(name, select);
      return { element: row, set: (value) => (select.value = `${value}`) };
    }
    case "switch": {
      const row = document.createElement("p");
      row.className = "switch";
      const box = document.createElement("input");
      box.type = "checkbox";
      box.id = id;
      box.addEventListener("change", () => change({ [control.key]: box.checked }));
      row.append(box, labelled(control.label, id));
      return { element: row, set: (value) => (box.checked = value === true) };
    }
    case "angle":
      throw new Error("an angle has no field of its own");
  }
}

function sliderField(id: string, slider: Slider, change: Change): Field {
  const row = document.createElement("p");
  const input = document.createElement("input");
  const output = document.createElement("output");
  Object.assign(input, { type: "range", id, min: "0", max: `${slider.count}`, step: "1" });
  output.htmlFor.add(id);
  const set = (value: Value): void => {
    input.value = `${positionOf(slider, value as number)}`;
    output.value = slider.text(value as number);
    input.setAttribute("aria-valuetext", output.value);
  };
  input.addEventListener("input", () => {
    const value = valueAt(slider, Number(input.value));
    set(value);
    change({ [slider.key]: value });
  });
  row.append(labelled(slider.label, id), output, input);
  return { element: row, set };
}

function labelled(words: string, id: string): HTMLLabelElement {
  const label = document.createElement("label");
  label.htmlFor = id;
  label.textContent = words;
  return label;
}

export function button(words: string, action: () => void, name?: string): HTMLButtonElement {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = words;
  if (name) made.setAttribute("aria-label", name);
  made.addEventListener("click", action);
  return made;
}

const TURN = 8; // degrees for a key or a button

/** Turn a figure by dragging, by arrow keys and by buttons. */
export function turnable(
  scene: Scene,
  stage: HTMLElement,
  read: () => State,
  change: Change,
): HTMLElement {
  const angles = scene.controls.filter((control) => control.kind === "angle");
  const [yaw, pitch] = angles as [(typeof angles)[0], (typeof angles)[0]];
  const turn = (across: number, up: number): void => {
    const state = read();
    const half = (value: number) => ((value + 540) % 360) - 180; // the yaw goes round
    const tilt = number(state, pitch.key) + up;
    change({
      [yaw.key]: half(Math.round(number(state, yaw.key) + across)),
      [pitch.key]: Math.min(pitch.max, Math.max(pitch.min, Math.round(tilt))),
    });
  };
  const moves: Record<string, [number, number]> = {
    ArrowLeft: [-TURN, 0],
    ArrowRight: [TURN, 0],
    ArrowUp: [0, TURN],
    ArrowDown: [0, -TURN],
  };
  stage.tabIndex = 0;
  stage.setAttribute("role", "group");
  stage.setAttribute("aria-label", "Figure in three dimensions; the arrow keys turn it");
  stage.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    turn(...move);
  });
  let last: PointerEvent | null = null;
  stage.addEventListener("pointerdown", (event) => {
    last = event;
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    if (!last) return;
    turn((event.clientX - last.clientX) / 2, (event.clientY - last.clientY) / 2);
    last = event;
  });
  for (const name of ["pointerup", "pointercancel"])
    stage.addEventListener(name, () => (last = null));
  const buttons = document.createElement("div");
  buttons.className = "turn";
  buttons.setAttribute("role", "group");
  buttons.setAttribute("aria-label", "Turn the figure");
  buttons.append(
    "Turn: ",
    ...(
      [
        ["←", "left", "ArrowLeft"],
        ["→", "right", "ArrowRight"],
        ["↑", "up", "ArrowUp"],
        ["↓", "down", "ArrowDown"],
      ] as const
    ).map(([arrow, way, key]) => button(arrow, () => turn(...moves[key]!), `Turn ${way}`)),
  );
  return buttons;
}
