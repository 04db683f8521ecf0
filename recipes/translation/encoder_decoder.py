"""The other architecture beside: torch's encoder-decoder, with as many parameters, on the same batches.

    python recipes/translation/encoder_decoder.py prepared/ benchmark --minutes 6 --out runs/encoder-decoder

The same pairs in the same batches, the same optimizers, learning rates, dropout and label smoothing, the same
time. Pre-norm blocks, Xavier initialisation, one tied embedding for both languages and the output. When the
time is over it translates the test set, greedily and with 4 beams. It lives here and not in the package:
GlassGPT is decoder-only, and this is what that is compared with.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))
from task_training import load_arrays, run_clock
from translation.train import ATTENTION_DROPOUT, CONTEXT, directions, settings

from glassgpt.tasks.definition import load_task
from glassgpt.tasks.encode import Encoder
from glassgpt.tokenizer import Tokenizer
from glassgpt.train.objectives.objective import Batch
from glassgpt.train.optim import make_optimizers, set_lr


class EncoderDecoder(nn.Module):
    """nn.Transformer between a tied embedding and itself. Muon looks for matrices in `h`."""

    def __init__(self, vocab_size: int, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, width)
        self.wpe = nn.Embedding(CONTEXT, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.Transformer(
            width, heads, layers, layers, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)
        # Dropout where GPT-2 has it, and attention's as there: torch would use `dropout` everywhere.
        for part in self.h.modules():
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = ATTENTION_DROPOUT
            elif isinstance(part, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                part.dropout.p = 0.0

    def embed(self, ids: Tensor) -> Tensor:
        return self.drop(self.wte(ids) + self.wpe.weight[: ids.shape[1]])  # (B, T, C)

    def encode(self, source: Tensor, padding: Tensor) -> Tensor:
        x: Tensor = self.h.encoder(self.embed(source), src_key_padding_mask=padding)
        return x

    def decode(self, target: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], target.device)
        x = self.h.decoder(
            self.embed(target), memory, tgt_mask=mask, tgt_is_causal=True, memory_key_padding_mask=padding
        )
        return F.linear(x, self.wte.weight)  # (B, T, V)


def divide(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A batch of the decoder-only model as source, its padding, the decoder's input and its targets.

    Everything before the first target is the source; its last token, which says the language, is also what
    the decoder begins with.
    """
    first = batch.mask.int().argmax(dim=1)  # (B): the separator stands here
    lengths = batch.mask.sum(dim=1)
    column = torch.arange(batch.ids.shape[1])[None]
    source = batch.ids[:, : int(first.max()) + 1]
    padding = column[:, : source.shape[1]] > first[:, None]
    wanted = column[:, : int(lengths.max())]
    at = (first[:, None] + wanted).clamp(max=batch.ids.shape[1] - 1)
    targets = batch.targets.gather(1, at).masked_fill(wanted >= lengths[:, None], -100)
    return source, padding, batch.ids.gather(1, at), targets


@torch.no_grad()
def translate(
    model: EncoderDecoder, prompts: list[list[int]], eot: int, beams: int, limit: int = 100
) -> list[list[int]]:
    """The best hypothesis of each prompt by log-probability / length, all prompts together."""
    model.eval()
    device = model.wte.weight.device
    longest = max(map(len, prompts))
    source = torch.tensor([ids + [0] * (longest - len(ids)) for ids in prompts], device=device)
    padding = torch.tensor([[i >= len(ids) for i in range(longest)] for ids in prompts], device=device)
    memory = model.encode(source, padding).repeat_interleave(beams, 0)
    padding = padding.repeat_interleave(beams, 0)
    n = len(prompts)
    ids = torch.tensor([[p[-1]] for p in prompts], device=device).repeat_interleave(
        beams, 0
    )  # (N * beams, 1)
    scores = torch.full((n, beams), -torch.inf, device=device)
    scores[:, 0] = 0
    best = [(-float("inf"), [])] * n  # type: list[tuple[float, list[int]]]
    for step in range(1, limit + 1):
        logprobs = model.decode(ids, memory, padding)[:, -1].float().log_softmax(-1).view(n, beams, -1)
        total = scores[:, :, None] + logprobs  # (N, beams, V)
        ending, texts = (total[:, :, eot] / step).tolist(), ids[:, 1:].tolist()
        for i in range(n):
            b = max(range(beams), key=ending[i].__getitem__)
            if ending[i][b] > best[i][0]:
                best[i] = (ending[i][b], texts[i * beams + b])
        total[:, :, eot] = -torch.inf
        scores, chosen = total.flatten(1).topk(beams)  # (N, beams)
        rows = (chosen // total.shape[2] + torch.arange(n, device=device)[:, None] * beams).flatten()
        ids = torch.cat([ids[rows], (chosen % total.shape[2]).flatten()[:, None]], dim=1)
        if all(score / limit <= found for score, (found, _) in zip(scores[:, 0].tolist(), best, strict=True)):
            break
    return [tokens for _, tokens in best]


@torch.no_grad()
def greedy(model: EncoderDecoder, prompts: list[list[int]], eot: int, limit: int = 100) -> list[list[int]]:
    """The most probable token again and again, until the end."""
    model.eval()
    device = model.wte.weight.device
    longest = max(map(len, prompts))
    source = torch.tensor([ids + [0] * (longest - len(ids)) for ids in prompts], device=device)
    padding = torch.tensor([[i >= len(ids) for i in range(longest)] for ids in prompts], device=device)
    memory = model.encode(source, padding)
    ids = torch.tensor([[p[-1]] for p in prompts], device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for _ in range(limit):
        chosen = model.decode(ids, memory, padding)[:, -1].argmax(-1)
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        ended |= chosen == eot
        if bool(ended.all()):
            break
    rows = ids[:, 1:].tolist()
    return [row[: row.index(eot)] if eot in row else row for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="3x360x9", help="layers in each half x width x heads")
    parser.add_argument("--minutes", type=float, default=6)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--to", default="fr")
    parser.add_argument("--limit", type=int, help="sentences to test with")
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    started = time.monotonic()
    tokenizer = Tokenizer.load(given.prepared / f"{given.name}-vocabulary")
    device = torch.device(given.device)
    torch.manual_seed(given.seed)
    model = EncoderDecoder(
        tokenizer.vocab_size, *map(int, given.shape.split("x")), dropout=given.dropout
    ).to(device)  # fmt: skip
    file = given.prepared / f"{given.name}.npz"
    batches = load_arrays(
        file, "train", directions(file, "train", given.to), tokens_per_batch=given.tokens, seed=given.seed
    )
    held_out = load_arrays(file, "valid", directions(file, "valid", given.to), tokens_per_batch=given.tokens)
    optimizers = make_optimizers(model, settings("bfloat16"))

    def loss_of(batch: Batch, smoothing: float) -> tuple[Tensor, int]:
        source, padding, inputs, targets = (part.to(device, non_blocking=True) for part in divide(batch))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model.decode(inputs, model.encode(source, padding), padding)
        flat = logits.float().flatten(0, 1)
        return F.cross_entropy(flat, targets.flatten(), label_smoothing=smoothing, reduction="sum"), int(
            batch.mask.sum()
        )

    def step_with(batch: Batch, ratio: float) -> float:
        set_lr(optimizers, ratio)
        model.train()
        loss, count = loss_of(batch, 0.1)
        (loss / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach() / count  # type: ignore[return-value]  # read when it is reported

    @torch.no_grad()
    def evaluate() -> float:
        model.eval()
        sums = [
            (float(loss), count) for loss, count in (loss_of(batch, 0.0) for batch in held_out.in_order())
        ]
        return float(np.sum([s for s, _ in sums]) / np.sum([c for _, c in sums]))

    records = run_clock(
        batches, step_with, evaluate, seconds=60 * given.minutes - (time.monotonic() - started),
        device=torch.device("cpu"), log=given.out / "log.jsonl", max_steps=given.max_steps,
    )  # fmt: skip
    facts = {
        "shape": f"encoder-decoder {given.shape}", "parameters": sum(p.numel() for p in model.parameters()),
        "dropout": given.dropout, "batch_tokens": given.tokens, **records[-1],
    }  # fmt: skip
    (given.out / "facts.json").write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    write_translations(model, tokenizer, given.prepared / f"{given.name}.test.tsv", given)


def write_translations(
    model: EncoderDecoder, tokenizer: Tokenizer, file: Path, given: argparse.Namespace
) -> None:
    encoder = Encoder(load_task("en-fr"), tokenizer, CONTEXT, given.to)
    rows = [line.split("\t") for line in file.read_text("utf-8").splitlines()][: given.limit]
    prompts = [encoder.prompt(row[0 if given.to == "fr" else 1]).ids for row in rows]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    assert tokenizer.eot_id is not None
    for kind in ("greedy", "beam4"):
        texts = {}
        for start in range(0, len(order), 250):
            chosen = order[start : start + 250]
            some = [prompts[i] for i in chosen]
            made = (
                greedy(model, some, tokenizer.eot_id) if kind == "greedy"
                else translate(model, some, tokenizer.eot_id, 4)
            )  # fmt: skip
            texts.update(zip(chosen, (tokenizer.decode(ids) for ids in made), strict=True))
        lines = "".join(" ".join(texts[i].split()) + "\n" for i in range(len(prompts)))
        (given.out / f"to-{given.to}.{kind}.txt").write_text(lines, "utf-8")
        print(f"{kind}: {len(prompts)} sentences", flush=True)


if __name__ == "__main__":
    main()
