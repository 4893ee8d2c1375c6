/** Points in three dimensions on the screen. */

import type { Point } from "../ui/plot";

export type Spot = readonly [number, number, number];

/** A view without perspective: the third axis points up, and a positive pitch looks from above. */
export interface View {
  readonly place: (spot: Spot) => Point;
  /** Larger is nearer to the eye. */
  readonly depth: (spot: Spot) => number;
  /** The spot in the plane of the screen, and at this depth, of which `place` is the inverse. */
  readonly spot: (across: number, up: number, near: number) => Spot;
}

/** A view turned by these angles in degrees; `scale` pixels per unit around a centre. */
export function view(yaw: number, pitch: number, scale: number, [cx, cy]: Point): View {
  const [a, b] = [(yaw * Math.PI) / 180, (pitch * Math.PI) / 180];
  const [ca, sa, cb, sb] = [Math.cos(a), Math.sin(a), Math.cos(b), Math.sin(b)];
  const turned = ([x, y, z]: Spot): Spot => {
    const [across, back] = [ca * x - sa * y, sa * x + ca * y];
    return [across, sb * back + cb * z, sb * z - cb * back];
  };
  return {
    place(spot) {
      const [across, up] = turned(spot);
      return [cx + scale * across, cy - scale * up];
    },
    depth: (spot) => turned(spot)[2],
    spot(across, up, near) {
      const [back, z] = [sb * up - cb * near, cb * up + sb * near];
      return [ca * across + sa * back, -sa * across + ca * back, z];
    },
  };
}
