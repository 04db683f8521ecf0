"""Trains and scores the models of docs/music.md within a given time, each with `glassgpt.train`.

    python recipes/music/train.py maestro --data shards/maestro --run runs/maestro --out results/ --minutes 12
    python recipes/music/train.py maestro --attention relative ...
    python recipes/music/train.py pop909 ...
    python recipes/music/train.py jsb ...
    python recipes/music/train.py speed --data shards/maestro --run runs/speed --out results/

Two runs make one model: the first at a constant learning rate until `--decay` of the time is left, the second
from its weights with the learning rate falling to zero in as many steps as the time allows. So the end of the
schedule comes in time however fast the machine is. `results/NAME.json` has the curve, the commands and the
negative log-likelihood of the validation and test pieces; the weights are there in parts of at most 15 MB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import glassgpt
from glassgpt.errors import UserError
from glassgpt.music.evaluate import evaluate, read_pieces
from glassgpt.train.checkpoint.log import read_log
from glassgpt.train.checkpoint.run_folder import LOG, checkpoint_step, list_checkpoints
from glassgpt.train.report.reporter import Reporter
from glassgpt.weights import load_checkpoint, save_checkpoint

COMMON: dict[str, Any] = {
    "optimizer": "muon", "lr": 2e-3, "matrix_lr": 0.02, "attention_dropout": 0.0, "weight_decay": 0.1,
    "eval_every": 250, "save_every": 250, "keep_checkpoints": 1,
}  # fmt: skip
# As the Music Transformer's: 6 layers, 512 wide, 8 heads, 2,048 events. The shipped model has no room for
# distances up to 2,048, and needs no absolute positions beside relative ones.
TASKS: dict[str, dict[str, Any]] = {
    "maestro": {"shape": "6x512x8", "context": 2048, "batch_size": 32, "dropout": 0.1, "transpose": 3},
    "pop909": {"shape": "8x320x5", "context": 2048, "batch_size": 32, "dropout": 0.15, "transpose": 5},
    "jsb": {"shape": "4x256x8", "context": 1024, "batch_size": 16, "dropout": 0.25, "transpose": 3,
            "eval_every": 50, "save_every": 50},
}  # fmt: skip
RELATIVE: dict[str, dict[str, Any]] = {
    "maestro": {}, "jsb": {}, "pop909": {"relative_distance": 512, "absolute_positions": False}
}  # fmt: skip
PART = 15_000_000  # bytes


class Curve(Reporter):
    """Keeps the records, and writes them to a file about every minute."""

    def __init__(self, path: Path) -> None:
        self.path, self.records, self.facts = path, [], {}  # type: ignore[var-annotated]
        self.began = self.written = time.perf_counter()

    def log(self, record: Mapping[str, Any]) -> None:
        now = time.perf_counter()
        kept = {name: record[name] for name in ("step", "loss", "val_loss", "tokens_per_s") if name in record}
        self.records.append({**kept, "seconds": round(now - self.began, 2)})
        if "val_loss" in kept or record["step"] % 100 == 0:
            print(json.dumps(self.records[-1]), flush=True)
        if now - self.written > 60:
            self.write()
            self.written = now

    def write(self, **facts: Any) -> None:
        self.facts.update(facts)
        thinned = [r for r in self.records if "val_loss" in r or r["step"] % 20 == 0]
        self.path.write_text(json.dumps({**self.facts, "curve": thinned}))

    def rate(self, tokens_per_step: int) -> float:
        """Steps a second, evaluations included, of the last two minutes."""
        late = [r["seconds"] for r in self.records if r["seconds"] > self.records[-1]["seconds"] - 120]
        if len(late) < 20:  # too few to tell
            return float(self.records[-1]["tokens_per_s"] / tokens_per_step)
        return (len(late) - 1) / (late[-1] - late[0])

    def show_sample(self, text: str) -> None:
        pass

    def warn(self, message: str) -> None:
        print(message, flush=True)


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    settings = {**COMMON, **TASKS[args.task], "precision": args.precision, "compile": args.compile,
                "device": args.device}  # fmt: skip
    if args.attention == "relative":
        settings |= {"attention": "relative", **RELATIVE[args.task]}
    for change in args.set:
        name, value = change.split("=", 1)
        try:
            settings[name] = json.loads(value)
        except ValueError:  # a word, such as a shape
            settings[name] = value
    return settings


def train(args: argparse.Namespace) -> None:
    settings = settings_of(args)
    name = f"{args.task}-{args.attention}" + ("" if not args.name else f"-{args.name}")
    curve = Curve(args.out / f"{name}.json")
    curve.facts = {"name": name, "settings": settings, "minutes": args.minutes}
    began, first, second = time.perf_counter(), args.run / f"{name}-constant", args.run / name
    seconds = 60 * args.minutes
    stop_at = began + seconds * (1 - args.decay)
    glassgpt.train(
        args.data, first, steps=10**6, schedule="constant", warmup_steps=100, **settings,
        reporter=curve, stop=lambda: time.perf_counter() > stop_at,
    )  # fmt: skip
    rate = curve.rate(settings["batch_size"] * settings["context"])
    steps = max(20, int(rate * (began + seconds - time.perf_counter()) * 0.97))
    too_late = began + 1.25 * seconds + 60  # the machine became slower

    curve.write(constant_steps=len(curve.records), decay_steps=steps)
    shapes = ("shape", "attention", "relative_distance", "absolute_positions")
    glassgpt.train(
        args.data, second, steps=steps, schedule="cosine", min_lr_ratio=0.0, warmup_steps=min(20, steps // 4),
        init_from=str(best_checkpoint(first)), reporter=curve, stop=lambda: time.perf_counter() > too_late,
        **{k: v for k, v in settings.items() if k not in shapes} | {"seed": 1},
    )  # fmt: skip
    curve.write(seconds=round(time.perf_counter() - began, 1))
    finish(args, name, second, curve)


def best_checkpoint(run: Path) -> Path:
    """The checkpoint with the lowest validation loss."""
    losses = {r["step"]: r["val_loss"] for r in read_log(run / LOG) if "val_loss" in r}
    return min(list_checkpoints(run), key=lambda folder: losses[checkpoint_step(folder)])


def finish(args: argparse.Namespace, name: str, run: Path, curve: Curve) -> None:
    """Scores and weights of the best checkpoint."""
    best = best_checkpoint(run)
    gpt = glassgpt.load(best, device=args.device, dtype="float32", backend="torch")
    model = gpt.torch_model
    context = model.config.n_positions
    facts = {"best_step": checkpoint_step(best), "parameters": model.config.n_parameters}
    curve.write(**facts, config=model.config.to_dict())
    half = {key: value.half().contiguous() for key, value in model.state_dict().items()}
    save_file(half, args.run / f"{name}.safetensors")
    write_parts(args.run / f"{name}.safetensors", args.out)
    if args.task == "pop909":
        save_checkpoint(load_checkpoint(best), args.run / f"{name}-int8", "packed")
        for file in (args.run / f"{name}-int8").iterdir():
            write_parts(file, args.out / f"{name}-int8")
    for split in ("val", "test"):
        try:
            pieces = list(read_pieces(args.data, split))
        except UserError:  # there is no such split
            continue
        for stride in (context, context // 2):
            found = evaluate(gpt.backend, pieces, stride=stride)
            score = {f"{split}_nll_stride_{stride}": round(found.nll, 5), f"{split}_events": found.events}
            curve.write(**score)
            print(json.dumps(score), flush=True)


def write_parts(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = file.read_bytes()
    for number in range(0, max(1, len(data)), PART):
        suffix = "" if len(data) <= PART else f".part{number // PART}"
        (folder / f"{file.name}{suffix}").write_bytes(data[number : number + PART])


def speed(args: argparse.Namespace) -> None:
    """Training speed of relative against plain attention, interleaved."""
    found: dict[str, list[float]] = {"causal": [], "relative": []}
    args.task = "maestro"
    for turn in range(args.turns):
        for attention in found:
            args.attention = attention
            curve = Curve(args.out / "speed-curve.json")
            run = args.run / f"speed-{attention}-{turn}"
            settings = settings_of(args) | {"eval_every": 10**6, "save_every": 10**6, "eval_batches": 1}
            glassgpt.train(args.data, run, steps=args.steps, reporter=curve, **settings)
            late = curve.records[args.steps // 2 : -1]
            found[attention].append(statistics.median(r["tokens_per_s"] for r in late))
            print(attention, found[attention][-1], flush=True)
    ratio = statistics.median(found["causal"]) / statistics.median(found["relative"])
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    result = {"tokens_per_s": found, "slower": round(ratio, 3), "device": device}
    (args.out / "speed.json").write_text(json.dumps(result))
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=[*TASKS, "speed"])
    parser.add_argument("--data", required=True, help="shards written by glassgpt music prepare")
    parser.add_argument("--run", type=Path, required=True, help="folder for the runs, with their checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is to be kept")
    parser.add_argument("--attention", choices=("causal", "relative"), default="causal")
    parser.add_argument("--minutes", type=float, default=5, help="of training")
    parser.add_argument(
        "--decay", type=float, default=0.4, help="the part of the time in which the rate falls"
    )
    parser.add_argument("--name", default="", help="added to the name of the results")
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE")
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--steps", type=int, default=60, help="of speed")
    parser.add_argument("--turns", type=int, default=2, help="of speed")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    (speed if args.task == "speed" else train)(args)


if __name__ == "__main__":
    main()
