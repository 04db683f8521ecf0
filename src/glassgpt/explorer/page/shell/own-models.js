// A model of one's own, chosen or dropped onto the page: its files are read here and are sent nowhere.

import { api, messageOf } from "../state/api.js";
import { el } from "../draw/draw.js";
import { t } from "../languages/language.js";
import { midi, openMidi } from "../music/midi-files.js";
import { openModel } from "../text/examples.js";
import { store } from "../state/store.js";

/** @typedef {{open: (files: File[]) => Promise<{number: number, name: string}>}} Site `open` checks the files and opens the model */

/** What a model's folder may hold; other files of it are left out. */
const OF_MODEL = /\.(?:safetensors|gguf|json|txt|toml|bpe|model)$/i;

/** @param {Site} site @param {File[]} files */
async function openOwn(site, files) {
  const name = files.length === 1 ? files[0].name : files[0].webkitRelativePath?.split("/")[0] || files[0].name;
  midi.say(t("site.reading", { name }));
  try {
    const opened = await site.open(files);
    store.info = await api.again("/model"); // now with this one
    store.update({}, "info");
    await openModel(opened.number);
    midi.say(t("site.opened", { name: opened.name }));
  } catch (error) {
    midi.say(messageOf(error), true);
  }
}

/** The files of a folder that was dropped, one level deep. @param {FileSystemEntry} entry @returns {Promise<File[]>} */
function filesOf(entry) {
  if (entry.isFile) return new Promise((resolve, reject) => /** @type {FileSystemFileEntry} */ (entry).file((file) => resolve([file]), reject));
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  return new Promise((resolve, reject) => {
    /** @type {FileSystemEntry[]} */ const all = [];
    const next = () => reader.readEntries((some) => {
      all.push(...some);
      if (some.length > 0) next(); // a browser hands them out in parts
      else Promise.all(all.filter(({ isFile, name }) => isFile && OF_MODEL.test(name)).map(filesOf)).then((files) => resolve(files.flat()), reject);
    }, reject);
    next();
  });
}

/** Take what is dropped: a MIDI file is a prompt, anything else is a model. @param {DataTransfer} dropped @param {Site} site */
export async function takeDropped(dropped, site) {
  // The entries must be asked for before anything is awaited.
  const entries = [...dropped.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  const files = (await Promise.all(entries.map(filesOf))).flat();
  if (files.length === 1 && /\.midi?$/i.test(files[0].name)) return openMidi(files[0]);
  if (files.length > 0) await openOwn(site, files);
}

/** A button that opens files of a model. @param {Site} site */
export function ownModelButton(site) {
  const input = el("input", { type: "file", multiple: true, hidden: true, accept: ".safetensors,.gguf,.json,.txt,.toml",
    onchange: () => input.files?.length && void openOwn(site, [...input.files]) });
  return el("span", {}, el("button", { title: t("site.open.hint"), onclick: () => input.click() }, t("site.open")), input);
}
