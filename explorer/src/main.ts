import { answer } from "./answers";
import { fiber } from "./scenes/fiber";
import { rate } from "./scenes/rate";
import { recovery } from "./scenes/recovery";
import { selection } from "./scenes/selection";
import { busy, redraws, start } from "./ui/app";

// For the tests, and for readers who open the console: the mathematics, and the times of redraws.
Object.assign(globalThis, { posquadExplorer: { answer, busy, redraws } });

start(
  [fiber, rate, selection, recovery],
  document.getElementById("scenes")!,
  document.getElementById("main")!,
);
