// What the URL holds: the defaults, which it leaves out, and how its values are read.

/** @type {State} */
export const DEFAULTS = {
  text: "A robot must obey the orders given it",
  ids: null,
  model: 0,
  checkpoint: null,
  token: -1,
  layer: null,
  head: null,
  view: "block",
  temperature: 1,
  topK: 0,
  topP: 1,
  minP: 0,
  seed: 1,
  prompt: null,
  step: null,
  game: false,
  edits: [],
  second: "",
  compare: null,
  tour: null,
  theme: "auto",
  wide: false,
  mask: true,
  part: "",
  pattern: "matrix",
  least: 0.05,
  filter: "",
  sort: false,
  skipFirst: false,
  overlay: [],
  play: null,
  speed: 1,
  pin: null,
  target: null,
  method: "input_x_gradient",
  welcome: true,
  arcs: "head",
  lang: "",
};

/** What numbers of the state may be; others get their default. @type {Partial<Record<keyof State, (value: number) => boolean>>} */
const VALID = {
  temperature: (value) => value >= 0 && value <= 100,
  topP: (value) => value > 0 && value <= 1,
  minP: (value) => value >= 0 && value <= 1,
  least: (value) => value >= 0 && value <= 1,
  speed: (value) => value > 0 && value <= 8,
  seed: (value) => Number.isSafeInteger(value) && value >= 0,
  topK: (value) => Number.isSafeInteger(value) && value >= 0,
};

/** The fields that an edit of each kind needs; one that lacks them is left out. @type {Record<string, string[]>} */
const EDIT_NEEDS = {
  ablate_head: ["layer", "head"],
  ablate_neuron: ["layer", "neuron"],
  ablate_attention: ["layer"],
  ablate_mlp: ["layer"],
  ablate_block: ["layer"],
  patch: ["step", "source"],
  steer_token: ["layer", "token"],
};

/** @param {keyof State} name @param {string} value @returns {unknown} */
export function readValue(name, value) {
  const initial = DEFAULTS[name];
  if (typeof initial === "string") return value;
  try {
    const found = JSON.parse(value);
    if (name === "edits") return Array.isArray(found) ? found.filter(isEdit) : initial;
    if (name === "ids") return Array.isArray(found) && found.every((id) => Number.isSafeInteger(id) && id >= 0) ? found : initial;
    if (name === "overlay") return Array.isArray(found) ? found.filter((head) => /^\d+\.\d+$/.test(head)) : initial;
    if (found === null && initial === null) return null;
    if (typeof found !== typeof (initial ?? 0)) return initial;
    return typeof found === "number" && !(VALID[name] ?? Number.isSafeInteger)(found) ? initial : found;
  } catch {
    return initial;
  }
}

/** @param {string} value @param {(name: unknown) => number | undefined} numberOf @returns {State["compare"]} */
export function readCompare(value, numberOf) {
  try {
    const { a, b } = JSON.parse(value);
    const source = (/** @type {any} */ given) => {
      if (given?.model === undefined) return given;
      const model = numberOf(given.model);
      return model === undefined ? undefined : model === 0 ? {} : { model };
    };
    return { a: source(a), b: source(b) };
  } catch {
    return null;
  }
}

/** @param {any} edit @returns {boolean} */
function isEdit(edit) {
  const text = (/** @type {string} */ field) => field === "step" || field === "source";
  return (EDIT_NEEDS[edit?.kind] ?? ["?"]).every((field) => (text(field) ? typeof edit[field] === "string" : Number.isSafeInteger(edit[field])
    && edit[field] >= 0));
}
