// Bundles the pages into dist/. Started by the crate's build script, or by hand: `npm run build`.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";

const here = (path) => new URL(path, import.meta.url).pathname;

await mkdir(here("dist"), { recursive: true });
await build({
  // Fixed names: the server answers with an ETag, so a browser never runs last week's page.
  entryPoints: { app: here("src/main.tsx") },
  outdir: here("dist"),
  bundle: true,
  minify: true,
  format: "esm",
  // Browsers of 2021 and later.
  target: "es2021",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});
await copyFile(here("src/index.html"), here("dist/index.html"));
await copyFile(here("src/favicon.svg"), here("dist/favicon.svg"));
