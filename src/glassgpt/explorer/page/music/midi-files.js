// A MIDI file, dropped onto the page or chosen, becomes the prompt of a model of music.

import { api, messageOf } from "../state/api.js";
import { el } from "../draw/draw.js";
import { knownExamples, openLater } from "../text/examples.js";
import { store } from "../state/store.js";
import { t } from "../languages/language.js";

/** As the server's limit of a request. */
const MAX_BYTES = 256_000;

/** Says what became of a file; set by the strip, where the text is. @type {{say: (words: string, failed?: boolean) => void}} */
export const midi = { say: () => {} };

/** The model for a MIDI file: the current one if it reads music, else the shipped one; -1 if there is none. */
function musicModel() {
  if (knownExamples().kind === "music") return store.get().model;
  return store.info?.models.findIndex(({ name }) => name === "music") ?? -1;
}

/** Open a MIDI file: its first events are the text. @param {File} file */
export async function openMidi(file) {
  const model = musicModel();
  if (api.offline) return midi.say(t("error.file.text"), true);
  if (model < 0) return midi.say(t("midi.none"), true);
  if (file.size > MAX_BYTES) return midi.say(t("midi.large", { file: file.name, size: Math.ceil(file.size / 1000), limit: MAX_BYTES / 1000 }), true);
  midi.say(t("midi.reading", { file: file.name }));
  const open = openLater();
  try {
    const { ids, events, seconds } = await api.upload(`/midi?model=${model}`, file);
    const opened = open({ name: file.name, words: "", text: null, ids, state: {} }, { model, checkpoint: null });
    if (!opened) return midi.say("");
    const shown = ids.length - 1;
    midi.say(t(shown < events ? "midi.first" : "midi.all", { file: file.name, shown, events, seconds: seconds.toFixed(1) }));
  } catch (error) {
    midi.say(messageOf(error).replace(/^The file/, file.name), true);
  }
}

/** A button that opens a MIDI file. */
export function midiButton() {
  const input = el("input", { type: "file", accept: ".mid,.midi,audio/midi", hidden: true, onchange: () => input.files?.[0] && void openMidi(input.files[0]) });
  return el("span", {}, el("button", { class: "insert", title: t("midi.drop"), disabled: api.offline, onclick: () => input.click() },
    t("midi.open")), input);
}

/** What is dropped on a page with a server: a MIDI file. @param {DataTransfer} dropped */
const takeMidi = ({ files: [file] }) => file && void openMidi(file);

/** Let files be dropped here. @param {HTMLElement} where @param {(dropped: DataTransfer) => void} take */
export function acceptFiles(where, take = takeMidi) {
  const hasFile = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
  const mark = (/** @type {boolean} */ over) => where.classList.toggle("dropping", over);
  where.addEventListener("dragover", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    mark(true);
  });
  where.addEventListener("dragleave", (event) => event.relatedTarget === null && mark(false));
  where.addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    mark(false);
    if (event.dataTransfer) take(event.dataTransfer);
  });
}
