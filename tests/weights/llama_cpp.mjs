// Runs a GGUF file in llama.cpp and prints, as one line of JSON, what it made of it: the ids of a text, the
// ids that follow greedily, and the probabilities of every next token at every position of the text.
//
//     node llama_cpp.mjs FOLDER/node_modules/node-llama-cpp model.gguf TEXT HOW_MANY
//
// test_gguf.py calls it where node-llama-cpp is installed; see there.
import path from "node:path";
import {pathToFileURL} from "node:url";

const [, , library, file, text, howMany] = process.argv;
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(path.join(library, "dist", "index.js")).href);

const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: 1});
const model = await llama.loadModel({modelPath: file});
// Flash attention computes in float16; off, so that what is compared is the model and not a kernel.
const context = await model.createContext({contextSize: model.trainContextSize, flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"});

const ids = model.tokenize(text, false);
const forced = context.getSequence();
const steps = await forced.controlledEvaluate(
    ids.map((id) => [id, {generateNext: {probabilities: true, options: {temperature: 1, topK: 0, topP: 1, minP: 0}}}])
);
const probabilities = steps.map(({next}) => {
    const row = new Array(next.probabilities.size).fill(0);
    for (const [id, probability] of next.probabilities) row[id] = probability;
    return row;
});

await forced.clearHistory();
const greedy = [];
for await (const id of forced.evaluate(ids, {temperature: 0})) {
    greedy.push(id);
    if (greedy.length >= Number(howMany)) break;
}
const answer = JSON.stringify({
    release: llama.llamaCppRelease.release,
    ids, greedy, probabilities,
    text: model.detokenize(ids),
    eos: model.tokens.eos
});
process.stdout.write(answer + "\n", () => process.exit(0)); // not before the pipe has taken all of it
