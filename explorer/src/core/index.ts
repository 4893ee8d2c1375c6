/** The mathematics of the explorer. The tests compare it with posquad's answers. */

export * from "./flow";
export * from "./jacobi";
export * from "./matrix";
export * from "./regression";
export * from "./selection";
export * from "./sphere";
