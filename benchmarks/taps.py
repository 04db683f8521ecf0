"""The cost of taps when none is used: the model against a copy with the taps removed from its source.

    python benchmarks/taps.py [--size gpt2] [--rounds 40]

The copy is made from the text of gpt2.py: every `show(tap, name, x)` becomes `x`, every `within(...)` becomes
None, and the branch for a tap is removed. Both have the same random weights (speed does not depend on
them) and take turns on one thread of the CPU; measured is CPU time, which other programs disturb least.
Prints a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import statistics
import time
import types
from collections.abc import Callable
from unittest import mock

import torch

from glassgpt.config import Config
from glassgpt.model import Cache, attention, gpt2

READ = 64  # tokens of the forward pass, and already in the cache at the decode step


class RemoveTaps(ast.NodeTransformer):
    """Removes the taps from a module's source, and counts them."""

    def __init__(self) -> None:
        self.removed = 0

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name not in ("show", "within"):
            return node
        self.removed += 1
        return node.args[2] if name == "show" else ast.Constant(None)

    def visit_If(self, node: ast.If) -> ast.If | list[ast.stmt]:
        self.generic_visit(node)
        if ast.unparse(node.test) != "tap is None":
            return node
        self.removed += 1
        return node.body


def without_taps() -> types.ModuleType:
    """The module gpt2.py without taps."""
    remover = RemoveTaps()
    tree = ast.fix_missing_locations(remover.visit(ast.parse(inspect.getsource(gpt2))))
    # The definitions of show and within stay behind, unused; so does step_by_step, which is never called.
    used = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in ("show", "within")]
    if used or remover.removed < 20:
        raise SystemExit(f"unexpected taps in gpt2.py: {remover.removed} removed, {len(used)} left")
    module = types.ModuleType("gpt2_without_taps")
    with mock.patch.dict(attention._CLASSES, clear=True):  # the copy registers an Attention of its own
        exec(compile(tree, "gpt2_without_taps.py", "exec"), module.__dict__)
    module.__dict__["attention_class"] = lambda name: module.Attention
    return module


def forward(model: torch.nn.Module, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: model(ids)  # (1, READ, V)


def decode(model: gpt2.GPT2, ids: torch.Tensor) -> Callable[[], torch.Tensor]:
    cache = Cache.empty(model.config, 1, model.config.n_positions, torch.device("cpu"), torch.float32)
    cache = cache.view(slice(0, 1), 2 * READ)
    model(ids, torch.arange(READ)[None], cache)
    token, position = ids[:, :1], torch.tensor([[READ]])
    return lambda: model(token, position, cache)  # (1, 1, V)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="gpt2")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Config.named(options.size)
    model = gpt2.GPT2(config).eval().requires_grad_(False)
    with torch.device("meta"):
        bare = without_taps().GPT2(config)
    bare.load_state_dict(model.state_dict(), assign=True)
    bare.eval().requires_grad_(False)
    ids = torch.randint(0, config.vocab_size, (1, READ))

    rows = {}
    with torch.inference_mode():
        for case, make in ((f"forward of {READ} tokens", forward), ("one decode step", decode)):
            variants = {"with taps": make(model, ids), "taps removed": make(bare, ids)}
            if not torch.equal(*(run() for run in variants.values())):
                raise SystemExit(f"{case}: the copy computes something else")
            times: dict[str, list[float]] = {variant: [] for variant in variants}
            for turn in range(options.rounds):
                for variant in sorted(variants, reverse=turn % 2 == 1):  # neither is always first
                    begun = time.thread_time()
                    variants[variant]()
                    times[variant].append(1000 * (time.thread_time() - begun))
            medians = {variant: statistics.median(values) for variant, values in times.items()}
            rows[case] = {
                "with_taps_ms": medians["with taps"],
                "removed_ms": medians["taps removed"],
                "ratio": medians["with taps"] / medians["taps removed"],
                # How far two halves of the same contestant differ: what the ratio cannot be finer than.
                "noise": statistics.median(times["taps removed"][::2])
                / statistics.median(times["taps removed"][1::2]),
            }

    print(f"{options.size}, {options.rounds} rounds, one thread, CPU time; the same logits bit for bit")
    print(f"{'':24} {'with taps':>12} {'removed':>12} {'ratio':>8} {'noise':>8}")
    for case, row in rows.items():
        print(
            f"{case:24} {row['with_taps_ms']:9.2f} ms {row['removed_ms']:9.2f} ms {row['ratio']:8.3f} "
            f"{row['noise']:8.3f}"
        )
    print(json.dumps({"benchmark": "taps", "size": options.size, "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
