"""The model class `glassgpt` for lm-evaluation-harness.

`GlassGPTLM` is registered with `lm_eval` as `glassgpt` when this module is imported. The tokenization of
context and continuation and the rolling windows are inherited or called from `lm_eval`, so that every request
gets the result of its `hf` model with the same weights. Its command line, with this class registered:

    python -m glassgpt.evaluate.harness --model glassgpt --model_args pretrained=default --tasks triviaqa
"""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from glassgpt.backends.torch.backend import choose_device
from glassgpt.errors import SettingError, UserError
from glassgpt.evaluate.evaluate import open_score_cache
from glassgpt.evaluate.scoring.score_cache import ScoreCache
from glassgpt.evaluate.scoring.scorer import Scorer
from glassgpt.evaluate.scoring.windows import Group, continuation_windows
from glassgpt.generate.prompt import end_of_text
from glassgpt.generate.sampling.params import FILTERS, SamplingParams
from glassgpt.gpt import GPT, load
from glassgpt.progress import Advance, Progress, no_progress

try:
    from lm_eval import simple_evaluate, utils
    from lm_eval._cli import HarnessCLI
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
    from lm_eval.tasks import TaskManager
    from tqdm import tqdm
except ModuleNotFoundError as error:
    raise UserError(
        f"tasks of lm-evaluation-harness need the package {error.name}. "
        "Install it with: pip install 'glassgpt[eval]'"
    ) from None

__all__ = ["GlassGPTLM", "TaskManager", "simple_evaluate", "unknown_task_message"]

MAX_NEW_TOKENS = 256  # the default of `hf`
TOP_K = 50  # when sampling: the default of transformers, and so of `hf`

# Generation arguments of a task, by their names in `hf`, and our names for them.
GENERATION_ARGUMENTS = {
    "top_k": "top_k",
    **{name: name for name in FILTERS},
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
}

Encoded = tuple[tuple[str, str] | None, list[int], list[int]]  # (request, context, continuation)


@register_model("glassgpt")
class GlassGPTLM(TemplateLM):  # type: ignore[misc]
    """`pretrained` is a name or path for `glassgpt.load`, or a loaded model.

    `cache` is a folder for scores (or an open `ScoreCache`), with which an interrupted evaluation resumes.
    `batch_size` is accepted, as lm_eval requires, and ignored: batches follow from the lengths. `progress`
    defaults to lm_eval's tqdm bar.
    """

    def __init__(
        self,
        pretrained: str | GPT = "default",
        device: str | None = None,
        dtype: str | None = "float32",
        cache: str | Path | ScoreCache | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.progress = progress
        self.gpt = pretrained if isinstance(pretrained, GPT) else load(pretrained, device=device, dtype=dtype)
        if self.gpt.tokenizer is None:
            raise UserError(f"{pretrained} has no tokenizer. Put its tokenizer.json beside the weights.")
        self._tokenizer = self.gpt.tokenizer
        if not isinstance(cache, ScoreCache):
            cache = ScoreCache() if cache is None else open_score_cache(self.gpt.backend, cache)
        self.scorer = Scorer(self.gpt.backend, cache)

    @property
    def max_length(self) -> int:
        return self.gpt.backend.context

    @property
    def eot_token_id(self) -> int:
        eot = end_of_text(self.gpt.backend, self._tokenizer)
        if eot is None:
            raise UserError(f"{self.gpt.name} has no end-of-text token, which lm_eval puts before documents.")
        return eot

    @property
    def tokenizer_name(self) -> str:
        return self.gpt.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        return {"model_num_parameters": self.gpt.config.n_parameters, "model_name": self.gpt.name}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """`<|endoftext|>` in the text is the special token, as in `hf`; none is added."""
        return self._tokenizer.encode(string, allow_special=True)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        for request in requests:
            if not request.args[1]:
                raise _nothing_to_score(*request.args)
        results: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return results

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        groups: list[Group] = []
        windows_per_request: list[int] = []  # more than one where a request exceeds the context
        # Consecutive requests with one context are the choices of a question: a shared prefix.
        for _context, choices in itertools.groupby(requests, key=lambda request: request[1]):
            groups.append([])
            for texts, context, continuation in choices:
                if not continuation:
                    raise _nothing_to_score(*(("", "") if texts is None else texts))
                # A context of spaces only has moved them to the continuation and is empty.
                windows = continuation_windows(
                    context or [self.prefix_token_id], continuation, self.max_length
                )
                groups[-1] += windows
                windows_per_request.append(len(windows))
        total = sum(len(window.ids) for group in self.scorer.uncached(groups) for window in group)
        with self._progress(disable_tqdm or not total)("scoring", total, unit="tokens") as on_tokens:
            scores = itertools.chain.from_iterable(self.scorer.score(groups, on_tokens))
        results = []
        for (texts, _before, _after), count in zip(requests, windows_per_request, strict=True):
            parts = list(itertools.islice(scores, count))
            result = (sum(part.total for part in parts), all(bool(part.greedy.all()) for part in parts))
            results.append(result)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, result)
        return results

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        windows: list[Encoded] = []
        counts = []
        for request in requests:
            pairs = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            encoded = [(None, *utils.make_disjoint_window(pair)) for pair in pairs]
            windows += encoded
            counts.append(len(encoded))
        scored = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        totals = [sum((total for total, _ in itertools.islice(scored, n)), 0.0) for n in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        settings = [self.sampling_settings(gen_kwargs) for _, gen_kwargs in (r.args for r in requests)]
        prompts = [
            self.tok_encode(request.args[0])[-(self.max_length - each.max_new_tokens) :]
            for request, each in zip(requests, settings, strict=True)
        ]
        texts: dict[int, str] = {}
        progress = self._progress(disable_tqdm)("generating", len(requests))
        with progress as advance, closing(self.gpt.open(prompts, settings)) as handle:
            while len(texts) < len(requests):
                for i, event in handle.read():
                    if event.generation is not None:
                        texts[i] = event.generation.text
                        self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                        advance(1)
        return [texts[i] for i in range(len(requests))]

    def _progress(self, disable: bool) -> Progress:
        if disable:
            return no_progress
        return tqdm_progress if self.progress is None else self.progress

    def sampling_settings(self, gen_kwargs: Mapping[str, Any]) -> SamplingParams:
        """A task's generation arguments as our settings."""
        asked = dict(normalize_gen_kwargs(dict(gen_kwargs), MAX_NEW_TOKENS))
        most, drawn, temperature = (
            asked.pop("max_gen_toks"),
            asked.pop("do_sample"),
            asked.pop("temperature", 0.0),
        )
        stops = handle_stop_sequences(asked.pop("until"), eos=self._tokenizer.decode([self.eot_token_id]))
        if not 0 < most < self.max_length:
            raise SettingError(
                f"max_gen_toks is {most}, but the context is {self.max_length} tokens, prompt included. "
                f"Pass fewer, such as --gen_kwargs max_gen_toks={self.max_length // 2}."
            )
        if drawn and not temperature > 0:
            raise SettingError(f"do_sample needs a temperature above 0, not {temperature}.")
        unknown = sorted(set(asked) - set(GENERATION_ARGUMENTS))
        if unknown:
            raise SettingError(
                f"the task sets {unknown[0]}={asked[unknown[0]]!r}, which is not supported. "
                f"Supported: until, max_gen_toks, do_sample, temperature, {', '.join(GENERATION_ARGUMENTS)}."
            )
        off = {name: None if value == 0 else value for name, value in asked.items()}  # 0 is off
        ours: dict[str, Any] = {GENERATION_ARGUMENTS[name]: value for name, value in off.items()}
        if drawn:
            # From torch's generator, which lm_eval seeds: runs are reproducible, repeats of a request differ.
            ours = {"top_k": TOP_K, **ours, "seed": int(torch.randint(2**62, ()))}
        return SamplingParams(
            max_new_tokens=most,
            temperature=temperature if drawn else 0,
            stop=tuple(stop for stop in stops if stop),
            logprobs=None,
            **{"top_k": None, **ours},
        )


def _nothing_to_score(context: str, continuation: str) -> UserError:
    return UserError(
        f"{continuation[:40]!r} adds no tokens to {context[-40:]!r}: there is nothing to score. "
        "Give each request a continuation, with its leading space."
    )


@contextmanager
def tqdm_progress(description: str, total: int | None = None, *, unit: str = "") -> Iterator[Advance]:
    """The progress bar of lm_eval. Tokens rather than requests, which differ much in length."""
    with tqdm(total=total, desc=description, unit=f" {unit}" if unit else "it", unit_scale=True) as bar:
        yield bar.update


def unknown_task_message(name: str, manager: Any) -> str:
    """The message for an unknown task, with similar names."""
    near = difflib.get_close_matches(name, sorted(manager.task_index), n=3)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "All names: lm_eval ls tasks"
    return f"{name}: unknown task. {hint}"


def main() -> int:
    """lm_eval's command line, with errors in one line instead of a traceback. Unknown tasks are skipped."""
    utils.setup_logging()
    command_line = HarnessCLI()
    args = command_line.parse_args()
    try:
        if hasattr(args, "device") and args.device is None:
            # lm_eval defaults to cuda:0 even without a GPU, and fails on a second device in model_args.
            asked = (getattr(args, "model_args", None) or {}).pop("device", None)
            args.device = str(choose_device(asked))
        try:
            command_line.execute(args)
        except ValueError as error:
            if "Tasks not found" not in str(error):
                raise
            args.tasks = known_tasks(args.tasks, TaskManager(include_path=args.include_path))
            command_line.execute(args)
    except Exception as error:  # lm_eval and `datasets` raise many types
        message = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        print(f"error: {' '.join(message.split())[:300]}", file=sys.stderr)
        return 2
    return 0


def known_tasks(names: list[str], manager: Any) -> list[str]:
    """The known tasks; prints a line for each of the others."""
    known = []
    for name in names:
        if name.endswith(".yaml") or manager.match_tasks([name]):
            known.append(name)
        else:
            print(unknown_task_message(name, manager), file=sys.stderr)
    if not known:
        raise UserError("none of the tasks is known.")
    return known


if __name__ == "__main__":
    sys.exit(main())
