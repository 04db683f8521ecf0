// The page's engine in Node, for tests: opens the model in argv[2] and answers requests, one JSON line each, as the
// worker does: {"key": "/path {body}"}, {"generate": {body}} or {"open": folder}.
import { readFileSync, readdirSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { createInterface } from "node:readline";

const [, , page, ...models] = process.argv;
const engine = (name) => import(new URL(`file://${page}/engine/${name}`));
const { Explorer, failure } = await engine("explorer.js");
const { UserError } = await engine("model/wasm.js");
const { openModel } = await engine("formats/open.js");
const module = new WebAssembly.Module(readFileSync(join(page, "engine", "glassgpt.wasm")));

/** The files of a folder, or one file, in pieces that fit nothing. */
function filesOf(path) {
  const names = statSync(path).isDirectory() ? readdirSync(path).map((name) => join(path, name)).filter((name) => statSync(name).isFile()) : [path];
  return names.map((name) => ({
    name: basename(name),
    size: statSync(name).size,
    stream: async () => {
      const bytes = readFileSync(name);
      let at = 0;
      return new ReadableStream({
        pull(controller) {
          if (at >= bytes.length) return controller.close();
          controller.enqueue(bytes.subarray(at, at + 99_991));
          at += 99_991;
        },
      });
    },
  }));
}

const open = new Map();
const facts = JSON.parse(process.env.FACTS ?? "{}");
const library = {
  model: (number) => {
    if (!models[number]) throw new UserError(`There is no model ${number}.`, 404, "model");
    if (!open.has(number)) open.set(number, openModel(filesOf(models[number]), module, { name: basename(models[number]), number }, () => {}));
    return open.get(number);
  },
  describe: () => models.map((name) => ({ name, config: { n_positions: 1024 } })),
  examples: () => null,
  facts,
  version: "test",
};
const explorer = new Explorer(library);

/** Arrays as lists of numbers. */
function plain(key, value) {
  return ArrayBuffer.isView(value) ? Array.from(value) : value;
}

for await (const line of createInterface({ input: process.stdin })) {
  const { key, generate, open: folder } = JSON.parse(line);
  let answer;
  try {
    if (folder !== undefined) {
      const model = await openModel(filesOf(folder), module, { name: "dropped", number: models.push(folder) - 1 }, () => {});
      open.set(model.number, Promise.resolve(model));
      answer = { status: 200, body: { number: model.number } };
    } else if (generate) {
      const events = [];
      for await (const event of explorer.events(generate)) events.push(event);
      answer = { status: 200, body: events };
    } else answer = { status: 200, body: await explorer.respond(key) };
  } catch (error) {
    if (process.env.SITE_DEBUG) console.error(error);
    answer = failure(error);
  }
  console.log(JSON.stringify(answer, plain));
}
