/** A figure of a scene: its drawing area, legend and text for screen readers. */

import { select, type Selection } from "d3-selection";

export type Layer = Selection<SVGGElement, unknown, null, undefined>;

export interface Key {
  readonly name: string;
  /** The class of the line or mark, as in the drawing. */
  readonly mark: string;
  readonly shape: "line" | "dot" | "ring" | "square" | "star" | "area" | "cross";
}

export interface FigureOptions {
  readonly title: string;
  /** Height over width of the drawing, its least height, and its largest width. */
  readonly ratio: number;
  readonly least?: number;
  readonly widest: number;
  readonly canvas?: boolean;
  /** Whether arrow keys and dragging turn the figure. */
  readonly turnable?: boolean;
}

export const SVG = "http://www.w3.org/2000/svg";

export class Figure {
  readonly element = document.createElement("figure");
  readonly stage = document.createElement("div");
  readonly canvas: HTMLCanvasElement | null;
  private readonly svg = document.createElementNS(SVG, "svg");
  private readonly legend = document.createElement("ul");
  private readonly table = document.createElement("div");
  width = 0;
  height = 0;

  constructor(private readonly options: FigureOptions) {
    if (options.widest > 600) this.element.className = "wide";
    const caption = document.createElement("figcaption");
    caption.textContent = options.title;
    this.stage.className = options.turnable ? "stage turnable" : "stage";
    this.canvas = options.canvas ? document.createElement("canvas") : null;
    if (this.canvas) {
      this.canvas.setAttribute("aria-hidden", "true");
      this.stage.append(this.canvas);
    }
    this.svg.setAttribute("role", "img");
    this.stage.append(this.svg);
    this.legend.className = "legend";
    this.element.append(caption, this.stage, this.legend, this.table);
  }

  /** Take the present width, before anything is drawn: reading it later would cost a layout. */
  measure(): void {
    this.width = Math.min(this.element.clientWidth || 320, this.options.widest);
    this.height = Math.max(this.options.least ?? 0, Math.round(this.width * this.options.ratio));
  }

  /** An empty drawing. */
  clear(): Layer {
    this.svg.setAttribute("width", `${this.width}`);
    this.svg.setAttribute("height", `${this.height}`);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    return select(this.svg).append("g");
  }

  describe(words: string): void {
    this.svg.setAttribute("aria-label", words);
  }

  explain(keys: readonly Key[]): void {
    this.legend.replaceChildren(
      ...keys.map(({ name, mark, shape }) => {
        const item = document.createElement("li");
        const swatch = document.createElementNS(SVG, "svg");
        swatch.setAttribute("width", "26");
        swatch.setAttribute("height", "14");
        swatch.setAttribute("aria-hidden", "true");
        draw(select(swatch).append("g"), shape, mark, 13, 7);
        item.append(swatch, name);
        return item;
      }),
    );
  }

  /** A table of numbers below the drawing. */
  tabulate(caption: string, head: readonly string[], rows: readonly (readonly string[])[]): void {
    const table = document.createElement("table");
    const title = document.createElement("caption");
    title.textContent = caption;
    const cell = (name: "th" | "td", words: string, scope?: string): HTMLElement => {
      const made = document.createElement(name);
      made.textContent = words;
      if (scope) made.setAttribute("scope", scope);
      return made;
    };
    const line = (cells: HTMLElement[]): HTMLElement => {
      const row = document.createElement("tr");
      row.append(...cells);
      return row;
    };
    const top = document.createElement("thead");
    top.append(line(head.map((words) => cell("th", words, "col"))));
    const body = document.createElement("tbody");
    body.append(
      ...rows.map(([first, ...rest]) =>
        line([cell("th", first!, "row"), ...rest.map((words) => cell("td", words))]),
      ),
    );
    table.append(title, top, body);
    this.table.className = "numbers";
    this.table.replaceChildren(table);
  }
}

/** A mark of the legend or of the drawing, centred at (x, y). */
export function draw(layer: Layer, shape: Key["shape"], mark: string, x: number, y: number): void {
  if (shape === "line") {
    layer
      .append("line")
      .attr("class", mark)
      .attr("x1", x - 12)
      .attr("x2", x + 12)
      .attr("y1", y)
      .attr("y2", y);
  } else if (shape === "area") {
    layer
      .append("rect")
      .attr("class", mark)
      .attr("x", x - 9)
      .attr("y", y - 5)
      .attr("width", 18)
      .attr("height", 10);
  } else if (shape === "square") {
    const half = mark === "two" ? 6.5 : 5; // an open square shows the dot that it surrounds
    layer
      .append("rect")
      .attr("class", mark)
      .attr("x", x - half)
      .attr("y", y - half)
      .attr("width", 2 * half)
      .attr("height", 2 * half);
  } else if (shape === "cross") {
    const d = `M${x - 4},${y - 4}l8,8m0,-8l-8,8`;
    layer.append("path").attr("class", mark).attr("d", d);
  } else if (shape === "star") {
    const corners = Array.from({ length: 10 }, (_, k) => {
      const [angle, size] = [(k * Math.PI) / 5, k % 2 ? 3.2 : 7.5];
      const corner = [x + size * Math.sin(angle), y - size * Math.cos(angle)];
      return corner.map((value) => value.toFixed(2)).join();
    });
    layer.append("polygon").attr("class", mark).attr("points", corners.join(" "));
  } else {
    layer
      .append("circle")
      .attr("class", `${mark} ${shape}`)
      .attr("cx", x)
      .attr("cy", y)
      .attr("r", 5.5);
  }
}
