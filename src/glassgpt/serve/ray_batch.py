"""Completions or scores for large files, as a Ray Data pipeline that can be stopped and started again.

    python -m glassgpt.serve.ray_batch prompts.jsonl out/ --model gpt2 --max-new-tokens 64 --workers 8
    python -m glassgpt.serve.ray_batch corpus.parquet out/ --column text --score

The input, .jsonl or .parquet, has a column of texts. It is divided into parts of `--rows` rows. A worker (an
actor with the model, on any machine of the cluster) takes a part, computes its rows as a batch, and writes
out/part-NNNNNN.jsonl, under a temporary name first: what exists is finished. Started again, only missing
parts are computed, and since the seed of a row follows from its number, the result is the same; with other
settings than those in out/settings.json it is refused. All machines must see both folders.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glassgpt.errors import SettingError, UserError
from glassgpt.files import atomic_write
from glassgpt.files.parquet import open_parquet, read_column
from glassgpt.ranges import check_whole

if TYPE_CHECKING:
    from glassgpt.generate.generation import Generation

ROWS = 256
SETTINGS = "settings.json"


@dataclass(frozen=True)
class Part:
    """Some rows of the input: where they begin, and where the result goes."""

    source: str
    target: str
    first: int  # the number of its first row
    offset: int  # of jsonl, in bytes
    rows: int


def find_parts(source: Path, out: Path, rows: int) -> list[Part]:
    """The input in parts, whether they are finished or not."""

    def part(number: int, offset: int) -> Part:
        return Part(str(source), str(out / f"part-{number:06}.jsonl"), number * rows, offset, rows)

    if source.suffix == ".parquet":
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        total = pq.ParquetFile(source).metadata.num_rows
        return [part(number, 0) for number in range(-(-total // rows))]
    if source.suffix != ".jsonl":
        raise SettingError(f"{source.name} is neither .jsonl nor .parquet. Convert it first.")
    parts, offset = [], 0
    with source.open("rb") as lines:
        for number, line in enumerate(lines):
            if number % rows == 0:
                parts.append(part(number // rows, offset))
            offset += len(line)
    return parts


def read_part(part: Part, column: str) -> list[str]:
    """The texts of a part."""
    texts = list(islice(_read_texts(part, column), part.rows))
    wrong = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        raise SettingError(
            f"row {part.first + wrong:,} of {part.source} has no text in {column!r}. See --column."
        )
    return texts


def _read_texts(part: Part, column: str) -> Iterator[Any]:
    if part.source.endswith(".parquet"):
        with open_parquet(Path(part.source), column) as table:
            metadata, first = table.metadata, 0
        for group in range(metadata.num_row_groups):  # only those with rows of this part are read
            start, first = first, first + metadata.row_group(group).num_rows
            if first > part.first and start < part.first + part.rows:
                values = read_column(Path(part.source), column, group, group + 1)
                yield from islice(values, max(0, part.first - start), None)
        return
    with open(part.source, "rb") as lines:
        lines.seek(part.offset)
        for line in lines:
            yield read_row(line).get(column)


def read_row(line: bytes) -> dict[str, Any]:
    """A line as an object; an empty one if it is not an object."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


class BatchWorker:
    """A model on some machine of the cluster, which computes parts."""

    def __init__(self, model: str, column: str, score: bool, settings: dict[str, Any], seed: int) -> None:
        import glassgpt

        self.gpt = glassgpt.load(model)
        self.gpt.start_service()
        self.column = column
        self.score = score
        self.settings = settings
        self.seed = seed

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        part = Part(**row)
        try:
            texts = read_part(part, self.column)
            results = self.score_texts(texts) if self.score else self.complete(texts, part.first)
        except UserError as error:  # as a result: Ray would wrap an exception in pages of traceback
            return {"rows": 0, "error": str(error)}
        lines = [json.dumps({"row": part.first + i, **each}) for i, each in enumerate(results)]
        with atomic_write(part.target) as path:
            path.write_text("".join(line + "\n" for line in lines), "utf-8")
        return {"rows": len(texts), "error": ""}

    def complete(self, texts: list[str], first: int) -> list[dict[str, Any]]:
        changes = [{"seed": self.seed + first + number, **self.settings} for number in range(len(texts))]
        return [
            {"text": generation.text, "tokens": generation.tokens, "finish_reason": generation.finish_reason}
            for generation in self.run_batch([self.gpt.encode(text) for text in texts], changes)
        ]

    def score_texts(self, texts: list[str]) -> list[dict[str, Any]]:
        """The log-probability of each text after its first token, as far as the context reaches."""
        prompts = [self.gpt.encode(text)[: self.gpt.backend.context] for text in texts]
        scoring = {"max_new_tokens": 0, "prompt_logprobs": 0}
        results = []
        for generation, ids in zip(self.run_batch(prompts, [scoring] * len(prompts)), prompts, strict=True):
            known = [value for value in generation.prompt_logprobs or [] if value is not None]
            results.append({"logprob": float(np.sum(known)), "tokens": len(ids)})
        return results

    def run_batch(self, prompts: list[list[int]], changes: list[dict[str, Any]]) -> list[Generation]:
        """A text for each prompt, with its own settings."""
        from glassgpt.generate import SamplingParams

        generations: dict[int, Generation] = {}
        with closing(self.gpt.open(prompts, [SamplingParams(**each) for each in changes])) as handle:
            while len(generations) < len(prompts):
                for i, event in handle.read():
                    if event.generation is not None:
                        generations[i] = event.generation
        return [generations[i] for i in range(len(prompts))]


def check_same_settings(out: Path, settings: dict[str, Any]) -> None:
    """Refuse to mix two results in one folder; the first run writes down its settings."""
    path = out / SETTINGS
    if not path.exists():
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
        return
    before = read_row(path.read_bytes())
    differ = [name for name in sorted({*before, *settings}) if before.get(name) != settings.get(name)]
    if differ:
        name = differ[0]
        raise SettingError(
            f"{out} was begun with {name} {before.get(name)!r}, and this is {settings.get(name)!r}. "
            "Give the same, or another folder."
        )


def run(
    source: Path,
    out: Path,
    *,
    model: str = "default",
    column: str = "prompt",
    score: bool = False,
    rows: int = ROWS,
    workers: int = 1,
    cpus: float = 1,
    gpus: float = 0,
    seed: int = 0,
    **settings: Any,
) -> tuple[int, int]:
    """Compute what is missing; the number of rows computed now, and of parts that were there already."""
    import ray

    check_whole("rows", rows, 1, 10**9)
    check_whole("workers", workers, 1, 100_000)
    if not source.is_file():
        raise SettingError(f"{source} does not exist. Give a .jsonl or a .parquet file.")
    out.mkdir(parents=True, exist_ok=True)
    check_same_settings(
        out, {"source": source.name, "model": model, "column": column, "score": score, "rows": rows,
              "seed": seed, **settings},
    )  # fmt: skip
    parts = find_parts(source, out, rows)
    missing = [part for part in parts if not Path(part.target).exists()]
    if not missing:
        return 0, len(parts)
    data = ray.data.from_items([asdict(part) for part in missing], override_num_blocks=len(missing))
    done = data.map(
        BatchWorker,
        fn_constructor_args=(model, column, score, settings, seed),
        concurrency=min(workers, len(missing)),
        num_cpus=cpus,
        num_gpus=gpus,
    )
    reports = done.take_all()  # one for each part
    wrong = next((each["error"] for each in reports if each["error"]), None)
    if wrong is not None:
        raise SettingError(wrong)
    return sum(each["rows"] for each in reports), len(parts) - len(missing)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="default")
    parser.add_argument("--column", default="prompt", help="of the texts")
    parser.add_argument(
        "--score",
        action="store_true",
        help="log-probabilities of the texts, as far as the context reaches; no completions",
    )
    parser.add_argument("--rows", type=int, default=ROWS, help="of a part")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cpus", type=float, default=1, help="of a worker")
    parser.add_argument("--gpus", type=float, default=0, help="of a worker")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    args = vars(parser.parse_args())
    if args["score"]:
        del args["max_new_tokens"], args["temperature"]
    try:
        rows, there = run(args.pop("source").resolve(), args.pop("out").resolve(), **args)
    except UserError as error:
        sys.exit(f"glassgpt: {error}")
    print(f"{rows} rows computed; {there} parts were there already")


if __name__ == "__main__":
    main()
