"""The time of traces, interventions and attributions, on one thread.

    python benchmarks/trace.py [--case default:32] [--case gpt2:32] [--case gpt2:512] [--rounds 5]

A case is a model and a number of tokens: `default` is the shipped model, a published size (gpt2, ...) has
random weights (speed does not depend on them). The first row starts with a new trace and includes
its forward pass, the others use an existing one. Interleaved with them, the first row by hand with
transformers: a forward pass with attentions and hidden states, and each hidden state through the final
LayerNorm and the head. Prints a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Callable

import torch

import glassgpt
from glassgpt.backends.torch.backend import TorchBackend
from glassgpt.config import SIZES, Config
from glassgpt.gpt import GPT
from glassgpt.inspect import AblateHead
from glassgpt.model import GPT2


def opened(name: str) -> GPT:
    if name not in SIZES:
        return glassgpt.load(name, device="cpu", dtype="float32")
    torch.manual_seed(0)
    return GPT(TorchBackend(GPT2(Config.named(name)).eval().requires_grad_(False)), name=name)


def make_tasks(gpt: GPT, ids: list[int]) -> dict[str, Callable[[], object]]:
    base = gpt.trace(ids)
    base.lens(), base.token_loss, base.norms
    shorter = gpt.trace(ids[:-1])
    shorter.append(ids[-1]).norms  # noqa: B018

    def tower() -> None:
        trace = gpt.trace(ids)
        trace.token_loss, trace.lens(), trace.norms

    middle = gpt.config.n_layer // 2

    def edited() -> None:
        done = gpt.intervene(base, AblateHead(middle, 0))
        done.logits, done.kl, done.lens()

    names = [f"h.{middle}.{step}" for step in ("attn.q", "attn.k", "attn.v", "attn.scores", "attn.weights")]

    def block() -> None:
        base._activations._cached.clear()  # type: ignore[union-attr]  # as if it had not been read before
        base.read(*names)

    found: dict[str, Callable[[], object]] = {
        "token loss, lens and norms": tower,
        "inside one block": block,
        "next-token logits": lambda: base.logits_at(-1),
        "one more token": lambda: shorter.append(ids[-1]).logits_at(-1),
        "ablate a head: logits, KL, lens": edited,
    }
    if len(ids) <= 64:
        found["direct logit attribution"] = lambda: gpt.attribute(base, 5, "direct_logit_attribution")
        found["integrated gradients"] = lambda: gpt.attribute(base, 5)
    return found


def by_hand(gpt: GPT, ids: list[int]) -> Callable[[], object]:
    """What one would write with transformers for the first row."""
    import transformers

    ours = gpt.backend.model
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**gpt.config.to_dict()))
    state = {f"transformer.{name}": value for name, value in ours.state_dict().items()}
    theirs.load_state_dict({**state, "lm_head.weight": ours.wte.weight})
    theirs.eval().requires_grad_(False)
    theirs.set_attn_implementation("eager")
    batch = torch.tensor([ids])

    def run() -> None:
        with torch.inference_mode():
            out = theirs(batch, output_attentions=True, output_hidden_states=True)
            p = out.logits[0].softmax(-1)
            -(p * p.clamp(min=1e-30).log()).sum(-1)
            out.logits[0].argsort(-1, descending=True)  # the rank of each token
            for stream in out.hidden_states[:-1]:
                theirs.lm_head(theirs.transformer.ln_f(stream))[0].softmax(-1).max(-1)
                stream.norm(dim=-1)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", metavar="MODEL:TOKENS")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    for case in options.case or ["default:32", "default:256", "gpt2:32", "gpt2:512"]:
        name, tokens = case.split(":")
        gpt = opened(name)
        ids = torch.randint(
            0, gpt.config.vocab_size, (int(tokens),), generator=torch.Generator().manual_seed(1)
        )
        rows = make_tasks(gpt, ids.tolist())
        rows["(transformers, by hand)"] = by_hand(gpt, ids.tolist())
        rounds = options.rounds if int(tokens) <= 64 else max(1, options.rounds // 2)
        times: dict[str, list[float]] = {row: [] for row in rows}
        for row in rows.values():
            row()
        for _ in range(rounds):
            for row, run in rows.items():
                begun = time.thread_time()
                run()
                times[row].append(time.thread_time() - begun)
        results[case] = {row: statistics.median(values) for row, values in times.items()}
        print(f"{name}, {tokens} tokens, one thread: seconds of CPU time, median of {rounds}")
        for row, seconds in results[case].items():
            print(f"  {row:<30} {seconds:8.3f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory {peak:.1f} GiB")
    print(json.dumps({"seconds": results, "peak_gib": peak}))


if __name__ == "__main__":
    main()
