/** The page: one scene at a time, its state in the link. */

import { button, panel, turnable } from "./controls";
import { Figure } from "./frame";
import { player } from "./player";
import type { Scene } from "./scene";
import {
  admit,
  fragment,
  initial,
  number,
  type Slider,
  type State,
  stateOf,
  type Value,
} from "./state";

/** Milliseconds of the last redraws, and how many are due; for the tests and the benchmark. */
export const redraws: number[] = [];
let due = 0;
export const busy = (): boolean => due > 0;

interface Shown {
  readonly element: HTMLElement;
  readonly set: (state: State) => void;
  readonly redraw: () => void;
  readonly link: () => string;
  readonly leave: () => void;
}

/** Fill the page with the scenes, and keep it in step with the link. */
export function start(scenes: readonly Scene[], navigation: HTMLElement, main: HTMLElement): void {
  let current = -1;
  const list = document.createElement("ul");
  const tabs = scenes.map((scene, k) => {
    const tab = button(scene.tab, () => {
      open(k);
      history.replaceState(null, "", `#${shown[k]!.link()}`);
    });
    const item = document.createElement("li");
    item.append(tab);
    list.append(item);
    return tab;
  });
  navigation.append(list);
  const shown = scenes.map((scene, k) =>
    build(scene, () => k === current && history.replaceState(null, "", `#${shown[k]!.link()}`)),
  );
  main.append(...shown.map((one) => one.element));

  const open = (chosen: number): void => {
    if (current >= 0 && current !== chosen) shown[current]!.leave();
    current = chosen;
    shown.forEach((one, k) => (one.element.hidden = k !== chosen));
    tabs.forEach((tab, k) =>
      k === chosen ? tab.setAttribute("aria-current", "true") : tab.removeAttribute("aria-current"),
    );
    document.title = `${scenes[chosen]!.title} · posquad explorer`;
    shown[chosen]!.redraw();
  };
  const follow = (hash: string): void => {
    if (current >= 0 && hash === "#main") {
      // the skip link, which moved the focus
      return history.replaceState(null, "", `#${shown[current]!.link()}`);
    }
    const parts = new URLSearchParams(hash.slice(1));
    const chosen = Math.max(
      0,
      scenes.findIndex((scene) => scene.id === parts.get("scene")),
    );
    shown[chosen]!.set(stateOf(parts, scenes[chosen]!.controls));
    open(chosen);
  };
  // A redraw that was due may already have put its own link back; the event has the new one.
  addEventListener("hashchange", (event) => follow(new URL(event.newURL).hash));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    shown[current]!.redraw(),
  );
  follow(location.hash);
}

function build(scene: Scene, changed: () => void): Shown {
  let state = initial(scene.controls);
  let waiting = 0;
  const element = document.createElement("section");
  const heading = document.createElement("h2");
  heading.id = `${scene.id}-title`;
  heading.textContent = scene.title;
  element.setAttribute("aria-labelledby", heading.id);
  const lead = paragraph(scene.lead, "lead");
  const sentence = paragraph("", "sentence");
  sentence.setAttribute("role", "status");
  const link = linkField(scene.id);

  const paint = (): void => {
    waiting = 0;
    due--;
    if (element.hidden) return;
    const began = performance.now();
    for (const figure of figures) figure.measure();
    const words = scene.draw(state, figures, redraw);
    if (sentence.textContent !== words) sentence.textContent = words;
    redraws.push(performance.now() - began);
    if (redraws.length > 1000) redraws.shift();
    changed();
    link.show();
  };
  const redraw = (): void => {
    if (waiting) return;
    waiting = requestAnimationFrame(paint);
    due++;
  };
  const set = (values: Readonly<Record<string, Value>>): void => {
    state = Object.fromEntries(
      scene.controls.map((control) => [
        control.key,
        admit(control, values[control.key] ?? state[control.key]),
      ]),
    );
    controls.show(state);
    redraw();
  };
  const byHand = (values: Readonly<Record<string, Value>>): void => {
    if (!scene.played || scene.played in values) playing?.stop();
    set(values);
  };

  const controls = panel(scene, byHand);
  const played = scene.controls.find((control) => control.key === scene.played) as
    Slider | undefined;
  const playing =
    played &&
    player(
      played,
      () => number(state, played.key),
      (v) => set({ [played.key]: v }),
    );
  const figures = scene.figures.map((options) => new Figure(options));
  const views = document.createElement("div");
  views.className = "figures";
  scene.figures.forEach((options, k) => {
    const figure = figures[k]!;
    views.append(figure.element);
    if (options.turnable) figure.stage.after(turnable(scene, figure.stage, () => state, set));
  });

  const presets = document.createElement("div");
  presets.className = "presets";
  presets.setAttribute("role", "group");
  presets.setAttribute("aria-label", "Examples");
  const first = initial(scene.controls);
  presets.append(
    ...scene.presets.map(({ name, values }) => button(name, () => byHand({ ...first, ...values }))),
    button("Reset", () => byHand(first)),
  );
  const extra = document.createElement("div");
  extra.className = "extra";
  if (playing) controls.element.append(playing.element);
  extra.append(paragraph("Examples", "subheading"), presets, link.element, about(scene));
  const columns = document.createElement("div");
  columns.className = "columns";
  columns.append(controls.element, views, extra);
  element.append(heading, lead, sentence, columns);

  new ResizeObserver(redraw).observe(views);
  controls.show(state);
  return {
    element,
    set,
    redraw,
    link: () => fragment(scene.id, scene.controls, state),
    leave: () => playing?.stop(),
  };
}

function paragraph(words: string, kind: string): HTMLParagraphElement {
  const made = document.createElement("p");
  made.className = kind;
  made.textContent = words;
  return made;
}

function about(scene: Scene): HTMLDetailsElement {
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.textContent = "What is computed";
  details.append(summary, ...scene.details.map((words) => paragraph(words, "detail")));
  return details;
}

/** The link to this view, and a button that copies it. */
function linkField(id: string): { element: HTMLElement; show: () => void } {
  const element = document.createElement("p");
  element.className = "link";
  const label = document.createElement("label");
  label.htmlFor = `${id}-link`;
  label.textContent = "Link to this view";
  const field = document.createElement("input");
  Object.assign(field, { type: "text", id: label.htmlFor, readOnly: true });
  const copy = button("Copy link", () => {
    field.select(); // where the clipboard is not allowed, the reader copies by hand
    const done = (): void => void (copy.textContent = "Link copied");
    navigator.clipboard?.writeText(field.value).then(done, () => undefined);
  });
  element.append(label, field, copy);
  return {
    element,
    show() {
      field.value = location.href;
      copy.textContent = "Copy link";
    },
  };
}
