"""The protocols once more, slowly and plainly: `transformers`, one forward pass for every window.

Of `glassgpt.evaluate` only the detokenizers are used here, which have their own tests.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import torch
import transformers

from glassgpt.evaluate.suites import detokenize
from glassgpt.evaluate.suites.lambada import STOP_WORDS


class Plain:
    def __init__(self, folder: Path, tokenizer) -> None:
        self.model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = tokenizer
        self.L = self.model.config.n_positions
        self._seen: dict[tuple[int, ...], torch.Tensor] = {}

    @torch.no_grad()
    def after(self, ids: list[int], begin: int, i: int, end: int) -> torch.Tensor:
        """The log-probabilities of all tokens in the place of ids[i], given ids[begin:i].

        The model reads on to `end`, which changes nothing: no token sees those after it.
        """
        window = tuple(int(token) for token in ids[begin:end])
        if window not in self._seen:
            logits = self.model(torch.tensor([window])).logits[0]
            self._seen[window] = logits.double().log_softmax(dim=-1)
        return self._seen[window][i - 1 - begin]

    def pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        stripped = context.rstrip()
        full = self.tokenizer.encode(context + continuation)
        before = self.tokenizer.encode(stripped)
        after = full[len(before) :]
        return before if before else [self.tokenizer.eot_id], after

    def continuation(self, context: str, continuation: str) -> tuple[list[float], list[bool]]:
        """Each token of the continuation: its log-probability, and whether it was the most likely."""
        before, after = self.pair(context, continuation)
        logprobs, greedy = [], []
        full = before + after
        # The last L + 1 tokens are what the model sees: L to read, the last to guess.
        begin = max(0, len(full) - self.L - 1)
        assert len(after) <= self.L, "write shorter test data"
        for i in range(len(before), len(full)):
            p = self.after(full, begin, i, len(full) - 1)
            logprobs.append(float(p[full[i]]))
            greedy.append(int(p.argmax()) == full[i])
        return logprobs, greedy

    def apart(self, text: str) -> list[float]:
        """Log-probabilities of all tokens of a text, in windows that do not overlap; the last one is full."""
        return self.rolling(text, self.L)

    def rolling(self, text: str, stride: int) -> list[float]:
        full = [self.tokenizer.eot_id, *self.tokenizer.encode(text)]
        n = len(full)
        found = []
        for t in range(1, n):
            if t <= self.L:
                end = min(1 + self.L, n)
            else:
                end = min(1 + self.L + math.ceil((t - self.L) / stride) * stride, n)
            begin = max(0, end - 1 - self.L)
            found.append(float(self.after(full, begin, t, end - 1)[full[t]]))
        return found

    def strided(self, text: str, stride: int) -> list[float]:
        ids = self.tokenizer.encode(text)
        found = []
        for t in range(len(ids)):
            begin = next(b for b in range(0, len(ids), stride) if b + self.L > t)
            if t > begin:
                found.append(float(self.after(ids, begin, t, min(begin + self.L, len(ids)))[ids[t]]))
        return found


def expected(plain: Plain, files: dict[str, str]) -> dict[str, float]:
    """Every figure of the suites `paper` and `harness`."""
    figures: dict[str, float] = {}
    figures |= lambada(plain, files["lambada_test.jsonl"])
    for name in ("CN", "NE"):
        figures[f"cbt-{name.lower()}.accuracy"] = cbt(plain, files[f"cbtest_{name}_test_2500ex.txt"])
    full = {
        "wikitext-2": ("wikitext-2.test.tokens", detokenize.wikitext),
        "wikitext-103": ("wikitext-103.test.tokens", detokenize.wikitext),
        "ptb": ("ptb.test.txt", detokenize.ptb),
        "1bw": ("news.en.heldout-00000-of-00050", detokenize.one_billion),
    }
    for name, (file, undo) in full.items():
        original_tokens = sum(len(line.split()) + 1 for line in files[file].split("\n")[:-1])
        loss = -sum(plain.apart(undo(files[file])))
        figures[f"{name}.perplexity"] = math.exp(loss / original_tokens)
    for name in ("enwik8", "text8"):
        loss = -sum(plain.apart(files[name]))
        figures[f"{name}.bits_per_byte"] = loss / math.log(2) / len(files[name].encode())
    raw = files["wikitext-2-raw.test"]
    rows = ["" if not line.strip() else line for line in raw.splitlines(keepends=True)]
    found = plain.strided("\n\n".join(rows), plain.L)
    figures["wikitext-2.token_perplexity"] = math.exp(-sum(found) / len(found))
    return figures | harness(plain, files)


def lambada(plain: Plain, text: str) -> dict[str, float]:
    nats, right, right_allowed, last_nats, last_right = [], [], [], [], []
    for line in text.splitlines():
        passage = json.loads(line)["text"]
        words = passage.split(" ")
        context, word = " ".join(words[:-1]), " " + words[-1]
        logprobs, greedy = plain.continuation(context, word)
        nats.append(-sum(logprobs))
        right.append(all(greedy))
        last_nats.append(-logprobs[-1])
        last_right.append(greedy[-1])
        before, after = plain.pair(context, word)
        begin = max(0, len(before) + len(after) - plain.L - 1)
        p = plain.after(before, begin, len(before), len(before)).clone()
        for token in range(len(p)):
            is_text = token < plain.tokenizer.text_size and token != plain.tokenizer.eot_id
            if is_text and plain.tokenizer.decode([token]).strip().lower() in STOP_WORDS:
                p[token] = -math.inf
        right_allowed.append(int(p.argmax()) == after[0] and all(greedy[1:]))
    n = len(nats)
    return {
        "lambada.perplexity": math.exp(sum(nats) / n),
        "lambada.accuracy": sum(right_allowed) / n,
        "lambada.accuracy_any_word": sum(right) / n,
        "lambada.perplexity_last_token": math.exp(sum(last_nats) / n),
        "lambada.accuracy_last_token": sum(last_right) / n,
        "lambada_openai.perplexity": math.exp(sum(nats) / n),
        "lambada_openai.acc": sum(right) / n,
    }


def cbt(plain: Plain, text: str) -> float:
    right = []
    for block in text.strip().split("\n\n"):
        story = [line.split(" ", 1)[1] for line in block.split("\n")]
        question, answer, _, choices = story.pop().split("\t")
        choices = choices.split("|")
        totals = []
        for choice in choices:
            filled = " ".join([*story, question.replace("XXXXX", choice)])
            clean = detokenize.childrens_books(filled)
            # Where the choice begins: all texts agree up to there.
            others = [
                detokenize.childrens_books(" ".join([*story, question.split("XXXXX")[0]])).rstrip(),
            ]
            cut = len(others[0])
            assert clean.startswith(others[0])
            totals.append(sum(plain.continuation(clean[:cut], clean[cut:])[0]))
        right.append(choices[totals.index(max(totals))] == answer)
    return sum(right) / len(right)


def harness(plain: Plain, files: dict[str, str]) -> dict[str, float]:
    figures = {}
    tasks = {
        "hellaswag": ("hellaswag_val.jsonl", hellaswag, True),
        "piqa": ("piqa.jsonl", lambda r: asked(plain, r["query"] + "Answer:", r["choices"]), True),
        "arc_easy": ("arc_easy.jsonl", lambda r: asked(plain, r["query"] + "\nAnswer:", r["choices"]), True),
        "winogrande": ("winogrande.jsonl", lambda r: filled(plain, r, " "), False),
        "wsc273": (
            "winograd_wsc.jsonl",
            lambda r: filled(plain, r, " " if r["continuation"].startswith(",") else "  "),
            False,
        ),
    }
    for name, (file, score, normalized) in tasks.items():
        right, right_normalized = [], []
        for line in files[file].splitlines():
            record = json.loads(line)
            totals = score(plain, record) if score is hellaswag else score(record)
            gold = record["label"] if "label" in record else record["gold"]
            right.append(totals.index(max(totals)) == gold)
            if normalized:
                choices = record["endings"] if "endings" in record else record["choices"]
                choices = [re.sub(r"\[.*?\]", "", choice).replace("  ", " ") for choice in choices]
                per = [total / len(choice) for total, choice in zip(totals, choices, strict=True)]
                right_normalized.append(per.index(max(per)) == gold)
        figures[f"{name}.acc"] = sum(right) / len(right)
        if normalized:
            figures[f"{name}.acc_norm"] = sum(right_normalized) / len(right)
    return figures | wikitext(plain, files["wikitext-2-raw.test"])


def hellaswag(plain: Plain, record: dict) -> list[float]:
    query = record["query"].replace(". she", ". She")
    endings = [re.sub(r"\[.*?\]", "", ending).replace("  ", " ") for ending in record["endings"]]
    return asked(plain, query, endings)


def asked(plain: Plain, context: str, choices: list[str]) -> list[float]:
    return [sum(plain.continuation(context, " " + choice)[0]) for choice in choices]


def filled(plain: Plain, record: dict, blanks: str) -> list[float]:
    ending = blanks + record["continuation"]
    return [sum(plain.continuation(context, ending)[0]) for context in record["context_options"]]


def wikitext(plain: Plain, text: str) -> dict[str, float]:
    second = text.index(" = Wooden bridge")
    loss = words = size = 0
    for page in (text[: text.index(" = Stone")], text[text.index(" = Stone") : second - 1], text[second:]):
        if not page.strip():
            continue
        loss -= sum(plain.apart(detokenize.harness_wikitext(page)))
        words += len(re.split(r"\s+", page))
        size += len(page.encode())
    return {
        "wikitext.word_perplexity": math.exp(loss / words),
        "wikitext.byte_perplexity": math.exp(loss / size),
        "wikitext.bits_per_byte": loss / size / math.log(2),
    }
