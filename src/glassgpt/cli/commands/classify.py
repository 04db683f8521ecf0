"""`glassgpt classify TEXT --model DIR`: the label of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.loading import Device, Dtype, load
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.cli.task_records import (
    BATCH,
    File,
    Json,
    finish,
    in_batches,
    make_problems,
    print_json,
    read_inputs,
)
from glassgpt.errors import UserError
from glassgpt.tasks.records import TEXT_FIELD, Problems, Record, source_of

if TYPE_CHECKING:
    from glassgpt.gpt import GPT
    from glassgpt.tasks.classify import Label
    from glassgpt.tasks.definition import Task


def command(
    text: Annotated[
        Positional[str | None], Flag("the text to classify; - reads stdin, one text per line", "[TEXT]")
    ] = None,
    *,
    file: File = None,
    model: Annotated[
        str, Flag("a model that was tuned to classify; any model with --labels", "MODEL")
    ] = "default",
    labels: Annotated[
        str | None, Flag("zero-shot: the labels to choose from, comma-separated", "A,B,...")
    ] = None,
    format: Annotated[
        str | None,
        Flag(
            "zero-shot: how text and label are put together, with {source} and {target}",
            "TEXT",
            default=r'"{source}\nThis is {target}"',
        ),
    ] = None,
    device: Device = None,
    dtype: Dtype = None,
    json: Json = False,
) -> int:
    """Classify texts with a model that `glassgpt tune --task` made, or zero-shot, by comparing the
    probabilities of given labels. The label and its probability go to stdout. If the records of a file have a
    label themselves, the accuracy is reported as well."""
    from glassgpt.tasks.classify import classification_task

    problems = make_problems()
    names = None if labels is None else [name.strip() for name in labels.split(",") if name.strip()]
    if names is not None and len(set(names)) < len(names):
        raise UserError(f"--labels {labels} has a label twice. Name each once.")
    records = read_inputs(text, file, "classify")
    gpt = load(model, device, dtype)
    task = classification_task(gpt, names, None if format is None else format.replace("\\n", "\n"))
    count = right = labeled = 0
    for some in in_batches(records, 1 if file is None else BATCH):
        count += len(some)
        with progress_bar.spinner(f"classifying records {some[0].number} to {some[-1].number}"):
            results = classify_records(gpt, task, some, problems)
        for record, result in zip(some, results, strict=True):
            print_result(record, result, json)
            gold = gold_label(task, record, problems)
            if gold is not None and not isinstance(result, str):
                labeled += 1
                right += result.label == gold
    if labeled:
        terminal.note(f"accuracy {right / labeled:.1%} ({right} of {labeled} labeled records)")
    return finish(problems, count, file)


def classify_records(gpt: GPT, task: Task, records: list[Record], problems: Problems) -> list[Label | str]:
    """The label of each record, or what is wrong with it."""
    from glassgpt.tasks.classify import classify_task

    fields = (task.direction().source, TEXT_FIELD, "source", "sentence")
    found = [(source_of(record, fields, problems), problems.last) for record in records]
    made = iter(classify_task(gpt, task, [source for source, _ in found if source is not None]))
    results = [problem if source is None else next(made) for source, problem in found]
    for record, result in zip(records, results, strict=True):
        if not isinstance(result, str) and result.was_cut:
            remark = f"{result.source_tokens:,} tokens are too many: the model saw {result.kept_tokens:,}"
            problems.note(record.number, remark, "cut")
    return results


def gold_label(task: Task, record: Record, problems: Problems) -> str | None:
    """The label that a record has itself, if it is one of the task's."""
    value: Any = record.values.get(task.direction().target)
    if value is None:
        return None
    if str(value) not in task.labels:
        problems.note(
            record.number, f"its label {value!r} is not one of {', '.join(task.labels)}", "with another label"
        )
        return None
    return str(value)


def print_result(record: Record, result: Label | str, json: bool) -> None:
    if isinstance(result, str):
        if json:
            print_json({"record": record.number, "error": result})
        else:
            print(flush=True)
    elif json:
        shares = {name: round(share, 4) for name, share in result.probabilities.items()}
        print_json({"record": record.number, "label": result.label, "probabilities": shares})
    else:
        print(f"{result.label} {result.probabilities[result.label]:.3f}", flush=True)
