"""`glassgpt eval MODEL`: metrics of a model, with standard errors and published results."""

from __future__ import annotations

import contextlib
import json as jsonlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import terminal
from glassgpt.cli.dashboard import duration
from glassgpt.cli.loading import Device, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.config import check_can_continue
from glassgpt.errors import SettingError, UserError
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.evaluate.metrics import MetricResult
    from glassgpt.evaluate.run import PreparedSuite, TaskResult
    from glassgpt.evaluate.score_cache import ScoreCache
    from glassgpt.evaluate.scorer import Scorer
    from glassgpt.evaluate.task import Task
    from glassgpt.gpt import GPT

PUBLISHED = "117M to 1542M: the published GPT-2 models, accuracies in percent (docs/evaluation.md)"
MOST_ITEMS = 2**31 - 1  # more than any task has documents, or any model positions
ESTIMATE_AFTER = 3.0  # seconds after which the remaining time can be estimated


def command(
    models: Annotated[
        Positional[tuple[str, ...]],
        Flag("a model, or two to compare; --suite perplexity and bits-per-byte take a FILE too", "MODEL"),
    ] = ("default",),
    *,
    suite: Annotated[
        str | None,
        Flag(
            "smoke, paper, harness, perplexity, bits-per-byte, or tasks: lambada,piqa",
            "NAME",
            default="smoke",
        ),
    ] = None,
    tasks: Annotated[str | None, Flag("tasks run by lm-evaluation-harness: triviaqa,drop", "NAMES")] = None,
    data: Annotated[
        str | None, Flag("folder with the data files (or the FILE)", "DIR", default="the hub")
    ] = None,
    stride: Annotated[
        int | None, Flag("stride of the windows on long texts", "N", default="the context: disjoint windows")
    ] = None,
    limit: Annotated[
        int | None, Flag("only the first N documents (or windows) of each task", "N", default="all")
    ] = None,
    json: Annotated[bool, Flag("print one JSON object with all metrics")] = False,
    markdown: Annotated[bool, Flag("print a Markdown table with one row")] = False,
    any_data: Annotated[bool, Flag("accept data files that differ from the published ones")] = False,
    cache: Annotated[
        str | None,
        Flag("score cache, from which an interrupted run resumes", "DIR", default="~/.cache/glassgpt/eval"),
    ] = None,
    device: Device = None,
    dtype: Annotated[str, Flag("float32, bfloat16, float16, float64", "NAME")] = "float32",
) -> int:
    """Evaluate a model on a suite of tasks. Every metric is printed with its standard error, its protocol and
    the published results. A task whose data is missing is reported and skipped. Run the same command again to
    resume an interrupted evaluation. The exit code is 1 if a data file is not the published one."""
    from glassgpt.evaluate.suites import FILE_SUITES, tasks_for_file

    for name, value in (("--limit", limit), ("--stride", stride)):
        if value is not None:
            check_whole(name, value, 1, MOST_ITEMS)
    if json and markdown:
        raise SettingError("--json and --markdown exclude each other. Give one of them.")
    models = models if models else ("default",)
    folder = None if data is None else Path(data).expanduser()
    if tasks is not None:
        from glassgpt.cli.eval_harness import run_tasks

        refuse_options_of_suites(suite, stride, any_data)
        settings = Settings(stride, limit, folder, not any_data, cache, device, dtype)
        return run_tasks(models, tasks, settings, json, markdown)
    suite = "smoke" if suite is None else suite
    if suite in FILE_SUITES:
        models, folder = model_and_file(suite, models, folder)
        selected, messages = tasks_for_file(suite, folder)
    else:
        selected, messages = tasks_of_suite(suite, folder, stride)
    if len(models) > 2:
        raise SettingError(f"got {len(models)} models; give one, or two to compare.")
    if len(models) == 2 and markdown:
        raise SettingError("--markdown takes one model. Leave it out, or give one model.")
    for message in messages:
        terminal.note(message)
    settings = Settings(stride, limit, folder, not any_data, cache, device, dtype)
    if len(models) == 2:
        from glassgpt.cli.eval_compare import compare

        return compare(models[0], models[1], selected, settings, json)
    task_results = ModelEvaluation(models[0], selected, settings).run()
    code = exit_code(task_results)
    metrics = [result for task_result in task_results for result in task_result.metrics]
    if json:
        print(jsonlib.dumps(as_json(metrics)))
    elif markdown:
        print(markdown_row(models[0], [cell(result) for result in metrics]))
    else:
        terminal.show(*render_results(task_results))
    return code


@dataclass(frozen=True)
class Settings:
    """The options of the command that apply to every model."""

    stride: int | None
    limit: int | None
    folder: Path | None
    check: bool
    cache: str | None
    device: str | None
    dtype: str


def refuse_options_of_suites(suite: str | None, stride: int | None, any_data: bool) -> None:
    for name, given in (("--suite", suite), ("--stride", stride), ("--any-data", any_data or None)):
        if given is not None:
            raise SettingError(
                f"{name} does not apply to --tasks, which runs lm_eval's. Leave out one of them."
            )


def tasks_of_suite(suite: str, folder: Path | None, stride: int | None) -> tuple[list[Task], list[str]]:
    """The tasks of a suite, or those named, and what to tell about them."""
    from glassgpt.evaluate.perplexity import STRIDED
    from glassgpt.evaluate.suites import select_tasks

    if folder is not None and not folder.is_dir():
        raise SettingError(f"--data {folder} is not a folder. Give the folder with the data files.")
    selected, messages = select_tasks(suite)
    if stride is not None and not any(isinstance(task, STRIDED) for task in selected):
        raise SettingError(f"--stride: no task of {suite} takes a stride. Leave it out.")
    return selected, messages


def model_and_file(suite: str, words: tuple[str, ...], given: Path | None) -> tuple[tuple[str, ...], Path]:
    """`eval MODEL FILE --suite perplexity`, or the file by --data."""
    if given is None:
        *rest, last = words
        given = Path(last).expanduser()
        words = tuple(rest) if rest else ("default",)
    if not given.is_file():
        raise SettingError(f"{given} is not a file. Type: glassgpt eval MODEL FILE --suite {suite}")
    return words, given


class ModelEvaluation:
    """One model and its prepared tasks."""

    def __init__(self, name: str, tasks: Sequence[Task], settings: Settings) -> None:
        from glassgpt.evaluate.lambada import stop_tokens
        from glassgpt.evaluate.run import prepare_tasks
        from glassgpt.evaluate.score_cache import ScoreCache
        from glassgpt.evaluate.scorer import Scorer
        from glassgpt.evaluate.task import WindowBuilder

        self.name = name
        self.gpt: GPT = load(name, settings.device, settings.dtype, batch_size=256)
        check_can_continue(self.gpt.config)
        tokenizer = self.gpt.tokenizer
        if tokenizer is None:
            raise UserError(f"{name} has no tokenizer. Put its tokenizer.json beside the weights.")
        with terminal.spinner(f"tokenizing the data for {name}"):
            builder = WindowBuilder(tokenizer, self.gpt.backend.context, settings.stride, settings.limit)
            self.suite: PreparedSuite = prepare_tasks(tasks, builder, settings.folder, settings.check)
            cache = ScoreCache(cache_folder(settings.cache) / f"{self.gpt.backend.fingerprint()}.scores")
            self.scorer: Scorer = Scorer(self.gpt.backend, cache, stop_tokens(tokenizer))
        check_cache(cache, settings.cache)
        self.note_vocabulary()

    def note_vocabulary(self) -> None:
        from glassgpt.config import SIZES
        from glassgpt.evaluate.perplexity import TokenPerplexity

        by_token = any(isinstance(task, TokenPerplexity) for task, _ in self.suite.ready)
        if by_token and self.gpt.config.vocab_size != SIZES["gpt2"].vocab_size:
            terminal.note(
                f"{self.name} does not have GPT-2's vocabulary ({self.gpt.config.vocab_size:,} tokens): its "
                "perplexity per token is not comparable with others; per word and per byte it is"
            )

    def run(self) -> list[TaskResult]:
        from glassgpt.evaluate.run import run_tasks

        known = self.suite.groups()
        left = self.scorer.uncached(known)
        total = sum(len(window.ids) for group in left for window in group)
        if sum(map(len, left)) < sum(map(len, known)):
            terminal.note(f"{sum(map(len, known)) - sum(map(len, left)):,} windows are in the cache")
        task_results = []
        begun = time.monotonic()
        with scoring_progress(f"scoring {self.name}", total) as on_tokens:
            for task_result in run_tasks(self.suite, self.scorer, on_tokens):
                task_results.append(task_result)
                if task_result.error:
                    terminal.note(f"{task_result.task.name}: {task_result.error}")
                for remark in task_result.notes:
                    terminal.note(f"{task_result.task.name}: {remark}")
        seconds = time.monotonic() - begun
        if seconds > 1 and total:
            terminal.note(f"{total:,} tokens in {duration(seconds)}, {total / seconds:,.0f} tokens/s")
        return task_results


@contextlib.contextmanager
def scoring_progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, and after some seconds a note with the estimated time."""
    begun, done, estimated = time.monotonic(), 0, False
    if total == 0:  # everything is in the cache
        yield lambda n: None
        return
    with terminal.progress(what, total) as advance:

        def on_tokens(n: int) -> None:
            nonlocal done, estimated
            done += n
            advance(n)
            seconds = time.monotonic() - begun
            if not estimated and seconds > ESTIMATE_AFTER and done < total:
                estimated = True
                left = seconds / done * (total - done)
                terminal.note(f"{total:,} tokens at {done / seconds:,.0f} tokens/s: {duration(left)} left")

        yield on_tokens


def cache_folder(given: str | None) -> Path:
    if given is not None:
        return Path(given).expanduser()
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path(os.path.expanduser("~")) / ".cache") / "glassgpt" / "eval"


def check_cache(cache: ScoreCache, given: str | None) -> None:
    """A cache that cannot be written is an error only if it was named."""
    if cache.problem is not None and given is not None:
        raise UserError(f"--cache {given}: {cache.problem}. Name another folder.")
    if cache.problem is not None:
        terminal.note(f"note: {cache.problem}: an interrupted run starts over. --cache DIR names another")


def exit_code(task_results: Sequence[TaskResult]) -> int:
    if not any(task_result.metrics for task_result in task_results):
        raise UserError(f"no task could be run. {task_results[0].task.name}: {task_results[0].error}.")
    return 1 if any(task_result.altered for task_result in task_results) else 0


# Output.


def format_value(result: MetricResult, value: float | None) -> str:
    """Accuracies in percent, four significant digits for the rest."""
    if value is None:
        return ""
    if result.kind.in_percent:
        return f"{100 * value:.2f}%"
    return f"{value:#.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def render_results(task_results: Sequence[TaskResult]) -> list[Any]:
    """The table; below it the protocols, if the table is too narrow for them, and the tasks that failed."""
    from rich.text import Text

    metrics = [result for task_result in task_results for result in task_result.metrics]
    made, under = table(metrics, protocols=True), []
    target = terminal.console()
    if target.measure(made, options=target.options.update(width=terminal.PIPE_WIDTH)).maximum > target.width:
        made = table(metrics, protocols=False)
        by_protocol: dict[str, list[str]] = {}
        for result in metrics:
            by_protocol.setdefault(result.protocol, []).append(result.metric)
        under = [f"{', '.join(metrics)}: {protocol}" for protocol, metrics in by_protocol.items()]
    if len(made.columns) > 5:  # with the published results
        under.append(PUBLISHED)
    missing = dict.fromkeys(task_result.task.name for task_result in task_results if task_result.error)
    if missing:
        under.append(f"not run: {', '.join(missing)}")
    return [made, *([""] if under else []), *(Text(line, style="quiet") for line in under)]


def table(metrics: Sequence[MetricResult], protocols: bool) -> Table:
    from rich.text import Text

    from glassgpt.evaluate.published import SIZES, published

    known = [published(m.metric, m.protocol) for m in metrics]
    sizes = [f">{size}" for size in SIZES] if any(known) else []
    made = terminal.table("metric", ">value", ">± error", ">n", *sizes, *(["protocol"] if protocols else []))
    for m, others in zip(metrics, known, strict=True):
        cells = ["" if x is None else f"{x:g}" for x in (others or [None] * len(sizes))] if sizes else []
        protocol = [Text(m.protocol, style="quiet")] if protocols else []
        value = Text(format_value(m, m.value), style="number")
        made.add_row(m.metric, value, format_value(m, m.stderr), f"{m.n:,}", *cells, *protocol)
    return made


def cell(m: MetricResult) -> tuple[str, str]:
    error = "" if m.stderr is None else f" ± {format_value(m, m.stderr)}"
    return f"{m.metric} ({m.protocol})", format_value(m, m.value) + error


def markdown_row(name: str, cells: Sequence[tuple[str, str]]) -> str:
    """A table of one row, from the head and the value of each column."""
    heads, values = zip(("model", name), *cells, strict=True)
    lines = (heads, ["---"] * len(heads), values)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def as_json(metrics: Sequence[MetricResult]) -> dict[str, Any]:
    return {result.metric: result.to_json() for result in metrics}
