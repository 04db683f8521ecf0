"""`glassgpt eval MODEL`: how good is a model, by which rule, and how sure is that?"""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.dashboard import duration
from glassgpt.cli.loading import Device, load
from glassgpt.cli.parse import flag
from glassgpt.errors import SettingError, UserError
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.evaluate.metrics import Measure
    from glassgpt.evaluate.run import Outcome, Plan
    from glassgpt.evaluate.scorer import Scorer
    from glassgpt.evaluate.task import Task
    from glassgpt.gpt import GPT

PUBLISHED = "117M to 1542M are the published GPT-2s, accuracies in percent (docs/evaluation.md)"
MOST_ITEMS = 2**31 - 1  # more than any task has documents, or any model positions
TELL_AFTER = 3.0  # seconds of work after which the rest can be estimated


def command(
    models: Annotated[
        Positional[tuple[str, ...]],
        flag("one model, or two to compare; with --suite perplexity or bits-per-byte also a FILE", "MODEL"),
    ] = ("default",),
    *,
    suite: Annotated[
        str | None,
        flag(
            "smoke, paper, harness, perplexity, bits-per-byte, or tasks: lambada,piqa",
            "NAME",
            default="smoke",
        ),
    ] = None,
    tasks: Annotated[
        str | None, flag("tasks of lm-evaluation-harness, run by itself: triviaqa,drop", "NAMES", default="")
    ] = None,
    data: Annotated[
        str | None, flag("the folder with the data files (or the one FILE)", "DIR", default="the hub")
    ] = None,
    stride: Annotated[
        int | None, flag("tokens between windows on long texts", "N", default="the context: windows apart")
    ] = None,
    limit: Annotated[
        int | None, flag("only the first documents (windows of long texts) of each task", "N", default="all")
    ] = None,
    json: Annotated[bool, flag("one JSON object with every figure", default="")] = False,
    markdown: Annotated[bool, flag("print a row of a Markdown table", default="")] = False,
    any_data: Annotated[bool, flag("score files that are not the published ones", default="")] = False,
    cache: Annotated[
        str | None, flag("where scores are kept, so that a killed run goes on", "DIR", default="~/.cache")
    ] = None,
    device: Device = None,
    dtype: Annotated[str, flag("float32, bfloat16, float16, float64", "NAME")] = "float32",
) -> int:
    """Measure a model. A suite is a set of tasks; every figure comes with its standard error and the rule by
    which it was counted, beside the published ones. A task whose data is missing says so, and the rest goes
    on. Run the same command again after a kill, and it goes on where it was. Exit code 1 if a file was
    altered."""
    from glassgpt.evaluate.perplexity import STRIDED
    from glassgpt.evaluate.suites import OF_A_FILE, chosen, of_file

    for name, value in (("--limit", limit), ("--stride", stride)):
        if value is not None:
            check_whole(name, value, 1, MOST_ITEMS)
    if json and markdown:
        raise SettingError("--json and --markdown both say what to print: leave one out.")
    models = models if models else ("default",)
    folder = None if data is None else Path(data).expanduser()
    if tasks is not None:
        from glassgpt.cli.eval_tasks import run_tasks

        for name, given in (("--suite", suite), ("--stride", stride), ("--any-data", any_data or None)):
            if given is not None:
                raise SettingError(
                    f"{name} is for our own suites, and --tasks runs lm_eval's: leave one out."
                )
        settings = Settings(stride, limit, folder, not any_data, cache, device, dtype)
        return run_tasks(models, tasks, settings, json, markdown)
    suite = "smoke" if suite is None else suite
    if suite in OF_A_FILE:
        models, folder = model_and_file(suite, models, folder)
        todo, complaints = of_file(suite, folder)
    else:
        if folder is not None and not folder.is_dir():
            raise SettingError(f"--data {folder} is not a folder. Name the folder with the data files.")
        todo, complaints = chosen(suite)
        if stride is not None and not any(isinstance(task, STRIDED) for task in todo):
            raise SettingError(f"--stride: no task of {suite} has windows that may overlap. Leave it out.")
    if len(models) > 2:
        raise SettingError(f"{len(models)} models are too many: give one, or two to compare.")
    if len(models) == 2 and markdown:
        raise SettingError("--markdown prints the row of one model. Leave it out, or give one model.")
    for complaint in complaints:
        terminal.note(complaint)
    settings = Settings(stride, limit, folder, not any_data, cache, device, dtype)
    if len(models) == 2:
        from glassgpt.cli.eval_two import compare

        return compare(models[0], models[1], todo, settings, json)
    bench = Bench(models[0], todo, settings)
    outcomes = bench.run()
    measures = [measure for outcome in outcomes for measure in outcome.measures]
    code = exit_code(outcomes)
    if json:
        print(jsonlib.dumps(as_json(measures)))
    elif markdown:
        print(markdown_row(models[0], [cell(measure) for measure in measures]))
    else:
        terminal.show(*figures(outcomes))
    return code


@dataclass(frozen=True)
class Settings:
    """What all models of a command have in common."""

    stride: int | None
    limit: int | None
    folder: Path | None
    check: bool
    cache: str | None
    device: str | None
    dtype: str


def model_and_file(suite: str, words: tuple[str, ...], given: Path | None) -> tuple[tuple[str, ...], Path]:
    """`eval MODEL FILE --suite perplexity`, or the file by --data."""
    if given is None:
        *rest, last = words
        given = Path(last).expanduser()
        words = tuple(rest) if rest else ("default",)
    if not given.is_file():
        raise SettingError(f"{given} is no file. Type: glassgpt eval MODEL FILE --suite {suite}")
    return words, given


class Bench:
    """One model with its tasks ready."""

    def __init__(self, name: str, tasks: Sequence[Task], settings: Settings) -> None:
        from glassgpt.evaluate.lambada import stop_tokens
        from glassgpt.evaluate.run import prepare
        from glassgpt.evaluate.score_cache import Store
        from glassgpt.evaluate.scorer import Scorer
        from glassgpt.evaluate.task import Reader

        self.name = name
        self.gpt: GPT = load(name, settings.device, settings.dtype, rows=256)
        tokenizer = self.gpt.tokenizer
        if tokenizer is None:
            raise UserError(f"{name} came without a tokenizer. Put its tokenizer.json beside the weights.")
        with terminal.waiting(f"reading the texts for {name}"):
            reader = Reader(tokenizer, self.gpt.backend.context, settings.stride, settings.limit)
            self.plan: Plan = prepare(tasks, reader, settings.folder, settings.check)
            store = Store(cache_folder(settings.cache) / f"{self.gpt.backend.fingerprint()}.scores")
            self.scorer: Scorer = Scorer(self.gpt.backend, store, stop_tokens(tokenizer))
        self.tell_vocabulary()

    def tell_vocabulary(self) -> None:
        from glassgpt.config import SIZES
        from glassgpt.evaluate.perplexity import TokenPerplexity

        by_token = any(isinstance(task, TokenPerplexity) for task, _ in self.plan.ready)
        if by_token and self.gpt.config.vocab_size != SIZES["gpt2"].vocab_size:
            terminal.note(
                f"{self.name} has another vocabulary than GPT-2 ({self.gpt.config.vocab_size:,} tokens): its "
                "perplexity per token compares with no other; per word and per byte it does"
            )

    def run(self) -> list[Outcome]:
        from glassgpt.evaluate.run import run

        known = self.plan.groups()
        left = self.scorer.todo(known)
        total = sum(len(row.ids) for group in left for row in group)
        if sum(map(len, left)) < sum(map(len, known)):
            terminal.note(f"{sum(map(len, known)) - sum(map(len, left)):,} rows are known from before")
        outcomes = []
        begun = time.monotonic()
        with working(f"scoring {self.name}", total) as on_tokens:
            for outcome in run(self.plan, self.scorer, on_tokens):
                outcomes.append(outcome)
                if outcome.problem:
                    terminal.note(f"{outcome.task.name}: {outcome.problem}")
                for remark in outcome.notes:
                    terminal.note(f"{outcome.task.name}: {remark}")
        seconds = time.monotonic() - begun
        if seconds > 1 and total:
            terminal.note(f"{total:,} tokens read in {duration(seconds)}, {total / seconds:,.0f} a second")
        return outcomes


@contextlib.contextmanager
def working(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, and after some seconds a line that says how long all of it will take."""
    begun, done, told = time.monotonic(), 0, False
    if total == 0:  # all is known: nothing to wait for
        yield lambda n: None
        return
    with terminal.progress(what, total) as advance:

        def on_tokens(n: int) -> None:
            nonlocal done, told
            done += n
            advance(n)
            seconds = time.monotonic() - begun
            if not told and seconds > TELL_AFTER and done < total:
                told = True
                left = seconds / done * (total - done)
                terminal.note(f"{total:,} tokens to read at {done / seconds:,.0f} a second: {duration(left)}")

        yield on_tokens


def cache_folder(given: str | None) -> Path:
    if given is not None:
        return Path(given).expanduser()
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "glassgpt" / "eval"


def exit_code(outcomes: Sequence[Outcome]) -> int:
    if not any(outcome.measures for outcome in outcomes):
        raise UserError(f"nothing could be measured. {outcomes[0].task.name}: {outcomes[0].problem}.")
    return 1 if any(outcome.altered for outcome in outcomes) else 0


# Output.


def shown(measure: Measure, value: float | None) -> str:
    """A figure as people write it: accuracies in percent, four digits for the rest."""
    if value is None:
        return ""
    if measure.kind.in_percent:
        return f"{100 * value:.2f}%"
    return f"{value:#.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def figures(outcomes: Sequence[Outcome]) -> list[Any]:
    """The table; under it the rules, where they are too wide to stand in it, and what is missing."""
    from rich.text import Text

    measures = [measure for outcome in outcomes for measure in outcome.measures]
    made, under = table(measures, rules=True), []
    target = terminal.console()
    if target.measure(made, options=target.options.update(width=terminal.PIPE_WIDTH)).maximum > target.width:
        made = table(measures, rules=False)
        by_rule: dict[str, list[str]] = {}
        for measure in measures:
            by_rule.setdefault(measure.protocol, []).append(measure.metric)
        under = [f"{', '.join(metrics)}: {rule}" for rule, metrics in by_rule.items()]
    if len(made.columns) > 5:  # with the published figures
        under.append(PUBLISHED)
    missing = dict.fromkeys(outcome.task.name for outcome in outcomes if outcome.problem)
    if missing:
        under.append(f"not measured: {', '.join(missing)}")
    return [made, *([""] if under else []), *(Text(line, style="quiet") for line in under)]


def table(measures: Sequence[Measure], rules: bool) -> Table:
    from rich.text import Text

    from glassgpt.evaluate.published import SIZES, published

    known = [published(m.metric, m.protocol) for m in measures]
    sizes = [f">{size}" for size in SIZES] if any(known) else []
    made = terminal.table("metric", ">value", ">± error", ">n", *sizes, *(["rule"] if rules else []))
    for m, others in zip(measures, known, strict=True):
        cells = ["" if x is None else f"{x:g}" for x in (others or [None] * len(sizes))] if sizes else []
        rule = [Text(m.protocol, style="quiet")] if rules else []
        value = Text(shown(m, m.value), style="number")
        made.add_row(m.metric, value, shown(m, m.stderr), f"{m.n:,}", *cells, *rule)
    return made


def cell(m: Measure) -> tuple[str, str]:
    error = "" if m.stderr is None else f" ± {shown(m, m.stderr)}"
    return f"{m.metric} ({m.protocol})", shown(m, m.value) + error


def markdown_row(name: str, cells: Sequence[tuple[str, str]]) -> str:
    """A table of one row, from the head and the figure of each column."""
    heads, values = zip(("model", name), *cells, strict=True)
    lines = (heads, ["---"] * len(heads), values)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_json(measures: Sequence[Measure]) -> dict[str, Any]:
    return {measure.metric: measure.to_json() for measure in measures}
