// Runs test/*.test.ts with node's own test runner. Debian 12's Node 18 does not strip types, so esbuild does.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const here = (path) => new URL(path, import.meta.url).pathname;

const sources = (await readdir(here("test"))).filter((name) => name.endsWith(".test.ts"));
const out = await mkdtemp(join(tmpdir(), "tidegate-console-test-"));
try {
  await build({
    entryPoints: sources.map((name) => here(`test/${name}`)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    target: "node18",
    sourcemap: "inline",
    logLevel: "warning",
  });
  const files = sources.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
  process.exitCode = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
} finally {
  await rm(out, { recursive: true });
}
