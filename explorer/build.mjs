// Build the explorer into one HTML file: `node build.mjs [FILE]`, run by `make explorer`.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(process.argv[2] ?? join(here, "../src/posquad/report/explorer.html"));
const read = (path) => readFileSync(join(here, path), "utf8");

/** Every file that the result depends on, by its path; the tests compute the same hash. */
function sources() {
  const inside = readdirSync(join(here, "src"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(here, join(entry.parentPath ?? entry.path, entry.name)).replaceAll("\\", "/"));
  return ["build.mjs", "package-lock.json", "page.html", "style.css", "tsconfig.json", ...inside].sort();
}

function digestOfSources() {
  const hash = createHash("sha256");
  for (const path of sources()) hash.update(`${path}\n${read(path)}\n`);
  return hash.digest("hex");
}

const hashOf = (text) => `sha256-${createHash("sha256").update(text).digest("base64")}`;

/** The licences of everything that is bundled from npm, in one comment. */
function licences(inputs) {
  const packages = new Set(
    Object.keys(inputs).flatMap((path) => /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ?? []),
  );
  const texts = [...packages].sort().map((name) => {
    const { version } = JSON.parse(read(`node_modules/${name}/package.json`));
    return `${name} ${version}\n\n${read(`node_modules/${name}/LICENSE`).trim()}`;
  });
  return `/*!\nThis file contains the following packages.\n\n${texts.join("\n\n")}\n*/\n`;
}

const bundled = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.ts"],
  bundle: true,
  minify: true,
  write: false,
  metafile: true,
  target: "es2020",
  format: "iife",
  charset: "utf8",
  legalComments: "none",
});
const sheet = await build({
  absWorkingDir: here, entryPoints: ["style.css"], minify: true, write: false, charset: "utf8",
});
const script = `\n${licences(bundled.metafile.inputs)}${bundled.outputFiles[0].text}`;
const style = sheet.outputFiles[0].text;
if (/<\/script/i.test(script)) throw new Error("the script contains the end of a script");

const parts = {
  "script-hash": hashOf(script),
  "style-hash": hashOf(style),
  sources: `sha256:${digestOfSources()}`,
  style,
  script,
};
const page = read("page.html").replace(/\{\{([\w-]+)\}\}/g, (_, name) => parts[name]);
mkdirSync(dirname(target), { recursive: true });
writeFileSync(target, page);
console.log(`${relative(process.cwd(), target)}: ${Buffer.byteLength(page)} bytes`);
