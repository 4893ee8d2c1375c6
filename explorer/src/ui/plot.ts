/** Axes and curves on a figure. */

import { axisBottom, axisLeft } from "d3-axis";
import type { ScaleContinuousNumeric } from "d3-scale";
import { line } from "d3-shape";
import type { Figure, Layer } from "./frame";
import { show } from "./words";

type Scale = ScaleContinuousNumeric<number, number>;

export type Point = readonly [number, number];

export const MARGIN = { left: 64, right: 26, top: 14, bottom: 44 };

/** A curve through points given in pixels. */
export function curve(layer: Layer, mark: string, points: readonly Point[]): void {
  const path = line()(
    points.map(([x, y]) => [Math.round(x * 100) / 100, Math.round(y * 100) / 100]),
  );
  if (path) layer.append("path").attr("class", mark).attr("d", path);
}

export function label(
  layer: Layer,
  words: string,
  x: number,
  y: number,
  anchor: "start" | "middle" | "end" = "middle",
  mark = "label",
): void {
  layer
    .append("text")
    .attr("class", mark)
    .attr("x", x)
    .attr("y", y)
    .attr("text-anchor", anchor)
    .text(words);
}

/** Both axes with their names; ticks of a logarithmic axis are powers of ten. */
export function axes(
  layer: Layer,
  figure: Figure,
  x: Scale,
  y: Scale,
  names: { readonly x: string; readonly y: string },
  ticks: { readonly x?: number[]; readonly y?: number[] } = {},
): void {
  const across = axisBottom(x)
    .ticks(Math.max(3, Math.floor(figure.width / 90)))
    .tickSizeOuter(0);
  const up = axisLeft(y).ticks(5).tickSizeOuter(0);
  across.tickFormat((value) => show(value.valueOf()));
  up.tickFormat((value) => show(value.valueOf()));
  if (ticks.x) across.tickValues(ticks.x);
  if (ticks.y) up.tickValues(ticks.y);
  const bottom = figure.height - MARGIN.bottom;
  layer.append("g").attr("class", "axis").attr("transform", `translate(0,${bottom})`).call(across);
  layer.append("g").attr("class", "axis").attr("transform", `translate(${MARGIN.left},0)`).call(up);
  label(layer, names.x, (MARGIN.left + figure.width - MARGIN.right) / 2, figure.height - 8);
  const middle = (MARGIN.top + bottom) / 2;
  layer
    .append("text")
    .attr("class", "label")
    .attr("text-anchor", "middle")
    .attr("transform", `translate(12,${middle}) rotate(-90)`)
    .text(names.y);
}
