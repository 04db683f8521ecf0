"""Draws tasks_roles.svg: what a task's record looks like to the model, token by token.

    python docs/task_pictures.py [-o docs/tasks_roles.svg]

The tokens are the shipped vocabulary's; a bar below a token says that its prediction counts in the loss.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from glassgpt.figures.svg import document, rect, text
from glassgpt.files import write_text_files
from glassgpt.tasks.definition import Task, load_task
from glassgpt.tasks.encode import Encoder
from glassgpt.tasks.vocabulary import add_tokens
from glassgpt.weights import load_tokenizer

ROWS = (
    ("en-fr", "fr", "I am a student", "je suis étudiant", "translation"),
    ("summarize", None, "The sea rose in the night.", "A flood.", "summary"),
    ("sentiment", None, "A charming journey.", "positive", "classification"),
)
COLORS = {"role": "#ffbe5c", "source": "#9bb8d9", "target": "#5fd4c4"}
LEFT, TOP, STEP, TALL, SIGN = 128, 34, 74, 26, 8.4
STYLE = (
    "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#223}.name{font-family:system-ui,sans-serif}"
)


def cells(task: Task, direction: str | None, source: str, target: str) -> list[tuple[str, str, bool]]:
    """Each token as (text, role, whether it is a target)."""
    tokenizer = add_tokens(load_tokenizer("default"), task.tokens)
    encoder = Encoder(task, tokenizer, 512, direction)
    example = encoder.example(source, target)
    rows = []
    for at, token in enumerate(example.ids):
        words = tokenizer.token_bytes(token).decode("utf-8", "replace")
        inside = len(encoder.start) <= at < example.target_start - len(encoder.separator)
        is_target = at >= example.target_start
        kind = "target" if is_target and words != "<|endoftext|>" else "source" if inside else "role"
        rows.append((words.replace("\n", "↵"), kind, is_target))
    return rows


def draw() -> str:
    parts, widest = [], 0.0
    for row, (name, direction, source, target, title) in enumerate(ROWS):
        y, x = TOP + row * STEP, float(LEFT)
        task = load_task(name)
        parts.append(text(8, y + 18, title, "name"))
        for words, kind, is_target in cells(task, direction, source, target):
            wide = SIGN * len(words) + 10
            parts.append(rect(x, y, wide, TALL, fill=COLORS[kind]))
            parts.append(text(x + 5, y + 18, words, style="white-space:pre"))
            if is_target:
                parts.append(rect(x, y + TALL + 4, wide, 4, fill="#b3541e"))
            x += wide + 3
        if task.has_head:
            parts.append(text(x + 8, y + 18, f"→ linear head → {target}", "name"))
            x += 230
        widest = max(widest, x)
    legend = "yellow: the format   blue: source   green: target   brown bar: counts in the loss"
    parts.append(text(8, 18, legend, "name"))
    label = "A record of each task, token by token"
    return document(round(widest + 12), TOP + len(ROWS) * STEP, parts, label, style=STYLE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--out", type=Path, default=Path(__file__).with_name("tasks_roles.svg"))
    args = parser.parse_args()
    write_text_files(args.out.parent, {args.out.name: draw()})


if __name__ == "__main__":
    main()
