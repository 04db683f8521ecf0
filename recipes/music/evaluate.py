"""The shipped model's music against people's.

    python recipes/music/evaluate.py --model MODEL --songs POP909 --out DIR

Samples of 30 s, excerpts of held-out songs, of training songs, and random notes: how far each set is from
other held-out excerpts (figures.py), and the longest run copied from the training songs.
Then ten held-out openings of 10 s continued by 12 s: does the continuation stay in key and tempo more often
than what other songs play? Writes DIR/results.json, the samples as MIDI, and pictures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from figures import distances, estimate_key, rhythm_likeness, share_in_key

import glassgpt
from glassgpt.music import Performance, PerformanceTokenizer
from glassgpt.music.arcs import attention_arcs
from glassgpt.music.generate import accompany, continue_primer, sample
from glassgpt.music.memorization import join, longest_copy
from glassgpt.music.midi import read_melody, read_midi, write_midi
from glassgpt.music.prepare import split_files
from glassgpt.music.roll import draw_roll

SECONDS, PRIMER, AFTER = 30.0, 10.0, 12.0


def excerpt(song: Performance, rng: np.random.Generator, seconds: float = SECONDS) -> Performance:
    first = rng.uniform(10, max(10.1, song.seconds - seconds - 10))
    return song.crop(first, first + seconds)


def random_notes(like: Performance, rng: np.random.Generator) -> Performance:
    """As many notes, anywhere."""
    count = len(like)
    start = rng.uniform(0, SECONDS - 0.5, count)
    return Performance.from_notes(
        start, start + rng.uniform(0.05, 2, count), rng.integers(21, 109, count), rng.integers(1, 128, count)
    )


def compare_sets(
    sets: dict[str, list[Performance]], held_out: list[Performance], training: list[Performance]
) -> dict[str, Any]:
    found, learned = {}, join(training)
    for name, performances in sets.items():
        apart = distances(performances, held_out)
        copies = [longest_copy(performance, learned) for performance in performances]
        found[name] = {
            "distances": {figure: round(value, 3) for figure, value in apart.items()},
            "mean distance": round(float(np.mean(list(apart.values()))), 3),
            "notes per second": round(float(np.mean([len(p) / SECONDS for p in performances])), 2),
            "longest copy, seconds": round(max(copy.seconds for copy in copies), 2),
            "longest copy, notes": max(copy.notes for copy in copies),
            "copies, seconds": [round(copy.seconds, 1) for copy in copies],
            "median copy, seconds": round(float(np.median([copy.seconds for copy in copies])), 2),
        }
        print(name, json.dumps(found[name]), flush=True)
    return found


def same_onsets(one: Performance, other: Performance) -> bool:
    names = ("start", "pitch", "velocity")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def continue_openings(
    gpt: glassgpt.gpt.GPT, songs: Sequence[Performance], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Ten openings: the model's continuation against excerpts of the same length from all other songs."""
    rows = []
    for number, song in enumerate(songs[:10]):
        opening = song.crop(0, 60)
        opening = opening.crop(float(opening.start[0]), 60)  # from the first note on
        (take,) = continue_primer(gpt, opening, AFTER, cut=PRIMER, seed=number)
        primer, after = opening.crop(0, PRIMER), take.performance.crop(PRIMER, PRIMER + AFTER)
        given = opening.choose(opening.start < PRIMER - 0.005)
        kept = take.performance.choose(take.performance.start < PRIMER - 0.005)
        others = [excerpt(other, rng, AFTER) for other in songs if other is not song]
        key = estimate_key(primer)
        in_key, of_others = share_in_key(after, key), [share_in_key(other, key) for other in others]
        rhythm = rhythm_likeness(primer, after)
        rhythm_of_others = [rhythm_likeness(primer, other) for other in others]
        truth = opening.crop(PRIMER, PRIMER + AFTER)
        rows.append({
            "primer kept": same_onsets(given, kept),
            "in key": round(in_key, 3),
            "in key, the song itself": round(share_in_key(truth, key), 3),
            "in key, others (median)": round(float(np.median(of_others)), 3),
            "key beats others": round(float(np.mean(in_key > np.array(of_others))), 3),
            "rhythm": round(rhythm, 3),
            "rhythm, the song itself": round(rhythm_likeness(primer, truth), 3),
            "rhythm, others (median)": round(float(np.median(rhythm_of_others)), 3),
            "rhythm beats others": round(float(np.mean(rhythm > np.array(rhythm_of_others))), 3),
        })  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    return rows


def judge_continuations(
    gpt: glassgpt.gpt.GPT, songs: Sequence[Performance], path: Path, rng: np.random.Generator
) -> dict[str, Any]:
    """Ten openings continued, and the melody of a song (in the file `path`) accompanied."""
    rows = continue_openings(gpt, songs, rng)
    result: dict[str, Any] = {"continuations": rows}
    result["continuations in key more often than others"] = sum(row["key beats others"] > 0.5 for row in rows)
    result["continuations in rhythm more often than others"] = sum(
        row["rhythm beats others"] > 0.5 for row in rows
    )
    melody = read_melody(path, "MELODY")[0].crop(0, 40)
    (accompanied,) = accompany(gpt, melody, seed=1)
    key = estimate_key(melody)
    result["accompaniment"] = {
        "in the melody's key": round(share_in_key(accompanied.performance, key), 3),
        "its rhythm's likeness": round(rhythm_likeness(accompanied.performance, melody), 3),
        "notes": len(accompanied.performance), "seconds": accompanied.seconds,
    }  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="music")
    parser.add_argument("--songs", type=Path, required=True, help="the folder POP909")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--no-continuations", dest="continuations", action="store_false")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pieces = split_files(sorted(args.songs.rglob("*.mid")), 0.1, 0)  # as `glassgpt music prepare` does
    songs = {split: [read_midi(p.path) for p in pieces if p.split == split] for split in ("train", "val")}
    print({split: len(found) for split, found in songs.items()}, flush=True)
    gpt = glassgpt.load(args.model)
    result: dict[str, Any] = {"samples": args.samples}

    began = time.process_time()
    takes = [sample(gpt, SECONDS, seed=seed)[0] for seed in range(args.samples)]  # `music sample --seed N`
    result["CPU seconds for a sample of 30 s"] = round((time.process_time() - began) / args.samples, 2)
    made = [take.performance for take in takes]
    for number, take in enumerate(takes):
        write_midi(take.performance, args.out / f"sample-{number:02d}.mid", take.seconds)
    half = len(songs["val"]) // 2
    held_out = [excerpt(song, rng) for song in songs["val"][:half]]
    chosen = rng.choice(len(songs["train"]), args.samples, replace=False)
    sets = {
        "samples": made,
        "held-out songs": [excerpt(song, rng) for song in songs["val"][half : half + args.samples]],
        "training songs": [excerpt(songs["train"][i], rng) for i in chosen],
        "random notes": [random_notes(performance, rng) for performance in held_out[: args.samples]],
    }  # fmt: skip
    result["sets"] = compare_sets(sets, held_out, songs["train"])
    if args.continuations:
        first = next(p.path for p in pieces if p.split == "val")
        result |= judge_continuations(gpt, songs["val"], first, np.random.default_rng(1))
    (args.out / "results.json").write_text(json.dumps(result, indent=1))
    draw(gpt, made[0], args.out)


def draw(gpt: glassgpt.gpt.GPT, performance: Performance, out: Path) -> None:
    """The roll of a sample, and what one of its events looks at, in every layer."""
    draw_roll(performance, "a sample of 30 seconds").save(out / "sample.svg")
    part = performance.crop(0, 12)
    ids = PerformanceTokenizer().encode(part).tolist()
    last = max(i for i, id in enumerate(ids) if id < 128)  # the last NOTE_ON
    for layer in range(gpt.config.n_layer):
        arcs = attention_arcs(gpt, ids, event=last, layer=layer, per_head=6)
        figure = draw_roll(
            part, f"attention of layer {layer}", arcs=[arc for arc in arcs if arc.weight > 0.03]
        )
        figure.save(out / f"attention-{layer}.svg")


if __name__ == "__main__":
    main()
