"""Any of our models for lm-evaluation-harness: its tasks, its prompts and its rules, our arithmetic.

`Harness` is a model class of `lm_eval`, known to it as `glassgpt` once this module is imported. How a context
and what follows it become tokens, and where windows over a long text begin, is inherited from `lm_eval` or
taken from it, so that every request gets the answer of its own `hf` model on the same weights. The whole of
its command line, with our model class in it:

    python -m glassgpt.evaluate.harness --model glassgpt --model_args pretrained=default --tasks triviaqa
"""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from glassgpt.errors import SettingError, UserError
from glassgpt.evaluate.score_cache import Store
from glassgpt.evaluate.scorer import Scorer
from glassgpt.evaluate.windows import Group, continuation_rows
from glassgpt.generate.engine import Engine, end_of_text
from glassgpt.generate.settings import Settings
from glassgpt.gpt import GPT, load
from glassgpt.model.torch_backend import choose_device

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

__all__ = ["Harness", "TaskManager", "simple_evaluate", "unknown"]

MAX_NEW_TOKENS = 256  # where a task does not say; as `hf` has it
TOP_K = 50  # of a drawn text where a task does not say: the default of transformers, and so of `hf`

# What a task may ask of a generation, by the name that `hf` knows it by.
WISHES = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram",
}

Encoded = tuple[tuple[str, str] | None, list[int], list[int]]  # the request, its context, what is scored


@register_model("glassgpt")
class Harness(TemplateLM):  # type: ignore[misc]
    """`pretrained` is what `glassgpt.load` takes, or a model that is loaded already.

    With `cache`, a folder, scores are kept there, and a run that was killed goes on where it was.
    `batch_size` is taken, as every model class must, and not needed: batches follow from the lengths.
    """

    def __init__(
        self,
        pretrained: str | GPT = "default",
        device: str | None = None,
        dtype: str | None = "float32",
        cache: str | Path | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self.gpt = pretrained if isinstance(pretrained, GPT) else load(pretrained, device=device, dtype=dtype)
        if self.gpt.tokenizer is None:
            raise UserError(
                f"{pretrained} came without a tokenizer. Put its tokenizer.json beside the weights."
            )
        self._tokenizer = self.gpt.tokenizer
        backend = self.gpt.backend
        path = None if cache is None else Path(cache).expanduser() / f"{backend.fingerprint()}.scores"
        self.scorer = Scorer(backend, Store(path))

    @property
    def max_length(self) -> int:
        return self.gpt.backend.context

    @property
    def eot_token_id(self) -> int:
        found = end_of_text(self.gpt.backend, self._tokenizer)
        if found is None:
            raise UserError(f"{self.gpt.name} has no end-of-text token, with which documents begin here.")
        return found

    @property
    def tokenizer_name(self) -> str:
        return self.gpt.name.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        return {"model_num_parameters": self.gpt.config.n_parameters, "model_name": self.gpt.name}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """`<|endoftext|>` in a text is that token, as it is for `hf`; none is ever added."""
        return self._tokenizer.encode(string, allow_special=True)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        for request in requests:
            if not request.args[1]:
                raise _nothing_to_score(*request.args)
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _loglikelihood_tokens(
        self, requests: Sequence[Encoded], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        groups: list[Group] = []
        rows_of: list[int] = []  # of each request: more than one where it is longer than the context
        # Requests that follow each other with one context are the choices of a question: it is read once.
        for _context, some in itertools.groupby(requests, key=lambda request: request[1]):
            groups.append([])
            for texts, context, continuation in some:
                if not continuation:
                    raise _nothing_to_score(*(("", "") if texts is None else texts))
                # A context of nothing but blanks gave those away, and is empty now.
                rows = continuation_rows(context or [self.prefix_token_id], continuation, self.max_length)
                groups[-1] += rows
                rows_of.append(len(rows))
        with _progress("scoring", self.scorer.todo(groups), disable_tqdm) as on_tokens:
            scores = itertools.chain.from_iterable(self.scorer.score(groups, on_tokens))
        answers = []
        for (texts, _before, _after), count in zip(requests, rows_of, strict=True):
            parts = list(itertools.islice(scores, count))
            answer = (sum(part.total for part in parts), all(bool(part.greedy.all()) for part in parts))
            answers.append(answer)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

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
            found = [(None, *utils.make_disjoint_window(pair)) for pair in pairs]
            windows += found
            counts.append(len(found))
        scored = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        totals = [sum((total for total, _ in itertools.islice(scored, n)), 0.0) for n in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        rows = 1
        while rows < min(len(requests), self.gpt.max_batch_size()):
            rows *= 2
        engine = Engine(self.gpt.backend.with_rows(rows), self._tokenizer)
        numbers: dict[int, int] = {}
        for i, request in enumerate(requests):
            context, wishes = request.args
            settings = self.settings(wishes)
            ids = self.tok_encode(context)[-(self.max_length - settings.max_new_tokens) :]
            numbers[engine.add(ids, settings)] = i
        texts = [""] * len(requests)
        with tqdm(total=len(requests), desc="generating", disable=disable_tqdm) as bar:
            while engine.busy:
                for event in engine.step():
                    if event.error is not None:
                        raise event.error
                    if event.generation is not None:
                        i = numbers[event.request]
                        texts[i] = event.generation.text
                        self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                        bar.update()
        return texts

    def settings(self, wishes: Mapping[str, Any]) -> Settings:
        """What a task asks of a generation, in our words."""
        asked = dict(normalize_gen_kwargs(dict(wishes), MAX_NEW_TOKENS))
        most, drawn, temperature = (
            asked.pop("max_gen_toks"),
            asked.pop("do_sample"),
            asked.pop("temperature", 0.0),
        )
        stops = handle_stop_sequences(asked.pop("until"), eos=self._tokenizer.decode([self.eot_token_id]))
        if not 0 < most < self.max_length:
            raise SettingError(
                f"max_gen_toks is {most}, and the model reads {self.max_length} tokens at a time, the prompt "
                f"among them. Ask for fewer; lm_eval takes --gen_kwargs max_gen_toks={self.max_length // 2}."
            )
        if drawn and not temperature > 0:
            raise SettingError(f"do_sample needs a temperature above 0, and it is {temperature}.")
        unknown = sorted(set(asked) - set(WISHES))
        if unknown:
            raise SettingError(
                f"the task asks for {unknown[0]}={asked[unknown[0]]!r}, which is not known here. "
                f"Known: until, max_gen_toks, do_sample, temperature, {', '.join(WISHES)}."
            )
        ours: dict[str, Any] = {
            WISHES[name]: None if value == 0 else value for name, value in asked.items()
        }  # 0 is off
        if drawn:
            # From torch's generator, which lm_eval seeds: a run repeats, and the repeats of a request differ.
            ours = {"top_k": TOP_K, **ours, "seed": int(torch.randint(2**62, ()))}
        return Settings(
            max_new_tokens=most,
            temperature=temperature if drawn else 0,
            stop=tuple(stop for stop in stops if stop),
            logprobs=None,
            **{"top_k": None, **ours},
        )


def _nothing_to_score(context: str, continuation: str) -> UserError:
    return UserError(
        f"{continuation[:40]!r} has no tokens of its own after {context[-40:]!r}: there is nothing to score. "
        "Give each request a continuation, with the blank before it."
    )


@contextmanager
def _progress(what: str, groups: Sequence[Group], silent: bool) -> Iterator[Callable[[int], None]]:
    """The bar that all of lm_eval draws, over tokens, for requests differ much in length."""
    total = sum(len(row.ids) for group in groups for row in group)
    with tqdm(total=total, desc=what, unit=" tokens", unit_scale=True, disable=silent or not total) as bar:
        yield bar.update


def unknown(name: str, manager: Any) -> str:
    """What to say of a task that is not there, with the names nearest to it."""
    near = difflib.get_close_matches(name, sorted(manager.task_index), n=3)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "All names: lm_eval ls tasks"
    return f"{name}: there is no such task. {hint}"


def main() -> int:
    """lm_eval's own command line. What it would answer with a traceback is one line here, and tasks that are
    not there do not keep the others from being run."""
    utils.setup_logging()
    command_line = HarnessCLI()
    args = command_line.parse_args()
    try:
        if hasattr(args, "device") and args.device is None:
            # lm_eval would take cuda:0, be there one or not, and stumble over a second one in model_args.
            asked = (getattr(args, "model_args", None) or {}).pop("device", None)
            args.device = str(choose_device(asked))
        try:
            command_line.execute(args)
        except ValueError as error:
            if "Tasks not found" not in str(error):
                raise
            args.tasks = known_tasks(args.tasks, TaskManager(include_path=args.include_path))
            command_line.execute(args)
    except Exception as error:  # lm_eval and what it fetches data with have no one kind for what goes wrong
        said = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        print(f"error: {' '.join(said.split())[:300]}", file=sys.stderr)
        return 2
    return 0


def known_tasks(names: list[str], manager: Any) -> list[str]:
    """The tasks that are there; a line for each of the others."""
    known = []
    for name in names:
        if name.endswith(".yaml") or manager.match_tasks([name]):
            known.append(name)
        else:
            print(unknown(name, manager), file=sys.stderr)
    if not known:
        raise UserError("no task is left to be run.")
    return known


if __name__ == "__main__":
    sys.exit(main())
