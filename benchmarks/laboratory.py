"""Seconds per method of the laboratory, beside TransformerLens' bridge on the same weights.

    .venv-lab/bin/python benchmarks/laboratory.py [--model default] [--prompts 50] [--tokens 15] [--rounds 3]
        [--threads 2] [--device cpu] [--methods heads,paths]

`make test-lab` installs .venv-lab. Each method is computed by both from the token ids on, in turn, after one
run of each that is not counted; TransformerLens' sweeps include the runs with a cache that they need. The
table has the median of the rounds, their ratio, and the largest difference of the numbers over the metric's
range: a method that differs by 1e-4 or more, or is slower than TransformerLens', makes the exit code 1.

    residual       activation patching of resid_pre by layer and position
    mlps           the same of the MLPs' outputs
    heads          of every head's output at all positions
    patterns       of every head's attention pattern
    paths          from one head of layer 1 to the queries of every later head
    attribution    attribution patching of heads and MLPs by position
    decomposition  every head's and MLP's part of the residual stream at the last position
    logits         direct logit attribution of every head
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformer_lens import patching
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools.analysis import attribution_patch

import glassgpt
from glassgpt.gpt import GPT
from glassgpt.inspect import Head

Method = Callable[[], np.ndarray]


class Laboratory:
    """The methods of both, on pairs of random prompts that differ in two tokens."""

    def __init__(self, model: str, prompts: int, tokens: int, device: str) -> None:
        self.gpt: GPT = glassgpt.load(model, device=device, dtype="float32", backend="torch")
        with tempfile.TemporaryDirectory() as scratch:
            glassgpt.weights.convert(model, Path(scratch) / "hf", "hf")
            self.bridge = TransformerBridge.boot_transformers(str(Path(scratch) / "hf"), device=device)
        rng = np.random.default_rng(0)
        size = self.gpt.config.vocab_size
        clean = rng.integers(size, size=(prompts, tokens))
        corrupted = clean.copy()
        for column in (tokens // 3, 2 * tokens // 3):
            corrupted[:, column] = rng.integers(size, size=prompts)
        answers, others = rng.integers(size, size=(2, prompts))
        self.texts = {
            "clean": clean.tolist(), "corrupted": corrupted.tolist(),
            "answer": answers.tolist(), "minus": others.tolist(),
        }  # fmt: skip
        self.clean, self.corrupted = (torch.tensor(ids, device=device) for ids in (clean, corrupted))
        self.answers, self.others = (torch.tensor(ids, device=device) for ids in (answers, others))

    def metric(self, logits: torch.Tensor) -> torch.Tensor:
        last, rows = logits[:, -1], torch.arange(len(logits), device=logits.device)
        return (last[rows, self.answers] - last[rows, self.others]).mean()

    def metric_range(self) -> float:
        both = (self.gpt.traces(self.texts[name]) for name in ("clean", "corrupted"))
        values = [traces.logit_diff(self.texts["answer"], self.texts["minus"]).values for traces in both]
        return float(np.ptp(np.concatenate(values)))

    def methods(self) -> dict[str, tuple[Method, Method]]:
        """By name: ours, theirs."""
        every = patching
        return {
            "residual": self.sweep("resid_pre", every.get_act_patch_resid_pre),
            "mlps": self.sweep("mlp", every.get_act_patch_mlp_out),
            "heads": self.sweep("head", every.get_act_patch_attn_head_out_all_pos),
            "patterns": self.sweep("pattern", every.get_act_patch_attn_head_pattern_all_pos),
            "paths": (self.our_paths, self.their_paths),
            "attribution": (self.our_attribution, self.their_attribution),
            "decomposition": (self.our_parts, self.their_parts),
            "logits": (self.our_logits, self.their_logits),
        }

    def sweep(self, patch: str, theirs: Callable[..., torch.Tensor]) -> tuple[Method, Method]:
        def by_bridge() -> np.ndarray:
            with torch.no_grad():
                _, cache = self.bridge.run_with_cache(self.clean)
                return theirs(self.bridge, self.corrupted, cache, self.metric).cpu().numpy()

        return lambda: self.gpt.sweep(**self.texts, patch=patch).mean().values, by_bridge

    def our_paths(self) -> np.ndarray:
        config = self.gpt.config
        later = [Head(i, h, "q") for i in range(2, config.n_layer) for h in range(config.n_head)]
        found = self.gpt.path_patch(
            **self.texts,
            sender=Head(1, 0),
            receivers=later,
            separately=True,
            freeze_mlps=True,
            into="corrupted",
        )
        return found.mean().values[0]

    @torch.no_grad()
    def their_paths(self) -> np.ndarray:
        caches = [self.bridge.run_with_cache(ids)[1] for ids in (self.clean, self.corrupted)]
        found = patching.get_act_patch_direct_path(
            self.bridge, self.corrupted, *caches, self.metric, 1, 0, "q", verbose=False
        )
        return found[2:].flatten().cpu().numpy()

    def our_attribution(self) -> np.ndarray:
        heads = (
            self.gpt.attribution_patch(**self.texts, patch="head", positions="each").effect().mean().values
        )
        mlps = self.gpt.attribution_patch(**self.texts, patch="mlp").effect().mean().values
        return np.concatenate([heads.ravel(), mlps.ravel()])

    def their_attribution(self) -> np.ndarray:
        config, tokens = self.gpt.config, self.clean.shape[1]
        heads, mlps = np.zeros((config.n_layer, config.n_head, tokens)), np.zeros((config.n_layer, tokens))
        for row in range(len(self.clean)):  # the metric differs by prompt, and takes one
            answer, other = self.answers[row], self.others[row]

            def metric(logits: torch.Tensor, answer=answer, other=other) -> torch.Tensor:
                return logits[0, -1, answer] - logits[0, -1, other]

            one = slice(row, row + 1)
            found = attribution_patch(self.bridge, self.clean[one], self.corrupted[one], metric)
            for node, score in found.node_scores.items():
                if node.kind == "attn_head_out":
                    heads[node.layer, node.head, node.position] += score / len(self.clean)
                elif node.kind == "mlp_out":
                    mlps[node.layer, node.position] += score / len(self.clean)
        return np.concatenate([heads.ravel(), mlps.ravel()])

    def our_parts(self) -> np.ndarray:
        found = self.gpt.traces(self.texts["clean"]).decompose()
        labels = found.labels["component"]
        order = [i for name in ("head ", "mlp ") for i, label in enumerate(labels) if label.startswith(name)]
        return found.values[:, order].swapaxes(0, 1)

    @torch.no_grad()
    def their_parts(self) -> np.ndarray:
        _, cache = self.bridge.run_with_cache(self.clean)
        heads = cache.stack_head_results(layer=-1, pos_slice=-1)
        parts, labels = cache.decompose_resid(layer=-1, pos_slice=-1, return_labels=True)
        mlps = [part for part, label in zip(parts, labels, strict=True) if label.endswith("mlp_out")]
        return torch.cat([heads, torch.stack(mlps)]).cpu().numpy()

    def our_logits(self) -> np.ndarray:
        found = self.gpt.traces(self.texts["clean"]).attribute_logits(
            self.texts["answer"], minus=self.texts["minus"]
        )
        return found.heads.values.reshape(len(self.clean), -1).T

    @torch.no_grad()
    def their_logits(self) -> np.ndarray:
        _, cache = self.bridge.run_with_cache(self.clean)
        heads = cache.stack_head_results(layer=-1, pos_slice=-1)
        scaled = cache.apply_ln_to_stack(heads, layer=-1, pos_slice=-1)
        model = self.gpt.torch_model
        weight = model.wte.weight if model.lm_head is None else model.lm_head.weight
        directions = model.ln_f.weight * (weight[self.answers] - weight[self.others])
        return torch.einsum("hpc,pc->hp", scaled, directions).cpu().numpy()


def seconds(method: Method, device: str) -> tuple[float, np.ndarray]:
    started = time.perf_counter()
    found = method()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", help="some of them, with commas between")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    laboratory = Laboratory(args.model, args.prompts, args.tokens, args.device)
    metric_range = laboratory.metric_range()
    methods = laboratory.methods()
    names = list(methods) if args.methods is None else args.methods.split(",")
    print(f"{'method':16}{'ours, s':>12}{'theirs, s':>12}{'times':>8}{'difference':>14}")
    rows = []
    for name in names:
        ours, theirs = methods[name]
        taken: tuple[list[float], list[float]] = ([], [])
        for number in range(args.rounds + 1):
            (mine, found), (other, expected) = seconds(ours, args.device), seconds(theirs, args.device)
            if number:  # the first run of each warms up
                taken[0].append(mine)
                taken[1].append(other)
        difference = float(np.abs(found - expected).max()) / (
            float(np.ptp(expected)) if name == "decomposition" else metric_range
        )
        us, them = map(statistics.median, taken)
        row = {"method": name, "ours": us, "theirs": them, "times": them / us, "difference": difference}
        rows.append(row)
        print(f"{name:16}{us:12.3f}{them:12.3f}{them / us:8.2f}{difference:14.1e}", flush=True)
    print(json.dumps({"benchmark": "laboratory", **vars(args), "results": rows}))
    return 0 if all(row["difference"] < 1e-4 and row["times"] >= 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
