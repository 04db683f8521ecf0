"""What `tune` picks, and what it keeps."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassgpt.backends.torch.backend import load_model
from glassgpt.config import SIZES, Config
from glassgpt.errors import FileFormatError, NonFiniteLossError, SettingError
from glassgpt.model import GPT2
from glassgpt.tokenizer import ByteTokenizer
from glassgpt.train import loop
from glassgpt.train.data.shards import Shards
from glassgpt.train.estimate import Estimate
from glassgpt.train.finetune import run as finetune_run
from glassgpt.train.finetune import settings as finetune_settings
from glassgpt.train.finetune import tune as finetune
from glassgpt.train.finetune.run import FinetuneRun, measure_loss, prepare_run, train_run
from glassgpt.train.finetune.settings import (
    choose_micro_batch,
    choose_settings,
    fit_to_time,
    make_eval_windows,
    read_tokens,
    sample_windows,
    schedule,
    split_tokens,
)
from glassgpt.train.finetune.state import STATE, is_interrupted, read_state, state_folder
from glassgpt.train.finetune.tune import TuneResult, tune
from glassgpt.train.interrupt import Stopping
from glassgpt.train.layers.lora import Ranks, choose_ranks
from glassgpt.train.loop import evaluate
from glassgpt.train.report.reporter import Reporter
from glassgpt.weights import Checkpoint, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.usefixtures("no_trial")

CONTEXT = 32
CONFIG = Config(
    vocab_size=ByteTokenizer().vocab_size, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2,
    embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
)  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "tides.txt"
    file.write_text(
        "".join(f"At {n % 24} o'clock the tide was {'in' if n % 2 else 'out'}.\n" for n in range(400))
    )
    return file


def start() -> Checkpoint:
    torch.manual_seed(0)
    tensors = {name: value.numpy() for name, value in GPT2(CONFIG).state_dict().items()}
    return Checkpoint(CONFIG, tensors, ByteTokenizer(), source="a small model")


def prepared(text: Path, **more: object) -> FinetuneRun:
    run = prepare_run(start(), [text], CPU, **more)  # type: ignore[arg-type]
    settings = schedule(dataclasses.replace(run.settings, steps=60, lr=5e-3, precision="float32"))
    return dataclasses.replace(run, settings=settings)


def test_texts_are_read_as_documents(tmp_path: Path, text: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    tokenizer = ByteTokenizer()
    tokens = read_tokens([text, tmp_path / "more.jsonl"], tokenizer)
    bound = [] if tokenizer.eot_id is None else [tokenizer.eot_id]
    parts = [text.read_text(), "one", "two"]
    wanted = [id for part in parts for id in [*bound, *tokenizer.encode(part)]]
    assert tokens.read(0, len(tokens)).tolist() == wanted
    lengths = [len(bound) + len(tokenizer.encode(part)) for part in parts]
    assert tokens.document_starts.tolist() == [0, lengths[0], lengths[0] + lengths[1]]


def test_a_text_that_expands_without_end_is_read_no_further_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few compressed kilobytes may be gigabytes."""
    encoded: list[str] = []

    class CountingTokenizer(ByteTokenizer):
        def encode_array(self, text: str) -> np.ndarray:
            encoded.append(text)
            return super().encode_array(text)

    monkeypatch.setattr(finetune_settings, "MAX_TOKENS", 1000)
    line = json.dumps({"text": "a b c " * 100}).encode() + b"\n"
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(line * 50))
    with pytest.raises(SettingError, match=r"more than 1,000 tokens, too many .* glassgpt prepare"):
        read_tokens([tmp_path / "bomb.jsonl.gz"], CountingTokenizer())
    assert 1 < len(encoded) < 50


@pytest.mark.parametrize("count", [2 * CONTEXT + 2, 500, 5000, 1_000_000])
def test_the_end_is_the_val_split(count: int) -> None:
    ids = np.arange(count, dtype=np.uint32)
    text, val = split_tokens(Shards.from_array(ids), CONTEXT)
    assert len(text) >= CONTEXT + 1
    assert CONTEXT + 1 <= len(val) <= max(CONTEXT + 1, count // 10)
    assert text.read(0, len(text)).tolist() == ids[: len(text)].tolist()
    assert val.read(0, len(val)).tolist() == ids[len(text) :].tolist()
    settings = choose_settings(CONFIG, len(text), lora=False)
    windows = torch.cat(make_eval_windows(val, settings))
    assert len(windows) == (len(val) - 1) // CONTEXT
    assert windows[0, 0] == len(text)
    assert windows[-1, -1] < count
    assert (windows[:, 1:] == windows[:, :-1] + 1).all()  # no window runs over the end


def test_too_little_text_is_refused() -> None:
    with pytest.raises(SettingError, match="the text has 65 tokens; two windows of 33"):
        split_tokens(Shards.from_array(np.zeros(65, np.uint32)), CONTEXT)


def test_what_is_picked() -> None:
    small = choose_settings(SIZES["gpt2"], 300_000, lora=False)
    assert (small.context, small.batch_size) == (1024, 4)
    assert 2e-5 <= small.lr <= 1e-4
    assert small.steps == finetune_settings.EPOCHS * 300_000 // 4096
    assert choose_settings(SIZES["gpt2-xl"], 300_000, lora=False).lr < small.lr
    thin = choose_settings(SIZES["gpt2"], 300_000, lora=True)
    assert thin.lr > small.lr
    assert (small.optimizer, small.matrix_lr) == ("muon", finetune_settings.MUON_LR)
    assert thin.optimizer == "adamw"
    little = choose_settings(CONFIG, 20 * CONTEXT, lora=False)
    assert little.batch_size == 1  # so that there are some updates
    assert little.steps == finetune_settings.MIN_STEPS
    assert choose_settings(CONFIG, 10 * CONTEXT, lora=False).steps == finetune_settings.MAX_EPOCHS * 10


def test_the_micro_batch_fits_into_memory() -> None:
    settings = dataclasses.replace(choose_settings(SIZES["gpt2"], 10**6, lora=False), batch_size=8)
    sizes = [
        choose_micro_batch(settings, SIZES["gpt2"], free).micro_batch_size
        for free in (1 << 28, 8 << 30, 1 << 40)
    ]
    assert sizes[0] == 1
    assert sizes[2] == 8
    assert sizes == sorted(sizes)
    assert choose_micro_batch(settings, SIZES["gpt2"], 1 << 40, max_tokens=2500).micro_batch_size == 2


def test_time_limits_the_steps() -> None:
    settings = choose_settings(CONFIG, 1_000_000, lora=False)
    plan = Estimate(
        settings, largest_micro_batch=1, parameters=0, weights=0, gradients=0, optimizer=0, activations=0,
        tokens_per_step=1000, tokens_per_s=500.0, peak_flops=1.0, flops_per_token=1.0,
    )  # fmt: skip
    limited = fit_to_time(settings, plan, 300, seconds=100)
    assert 40 <= limited.steps <= 50  # two seconds each
    assert limited.warmup_steps < limited.steps
    assert fit_to_time(settings, plan, 300, seconds=1e9).steps == settings.steps
    assert fit_to_time(settings, plan, 300, seconds=0.001).steps == 1


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_the_best_state_is_what_lies_on_the_disk(
    text: Path, tmp_path: Path, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune_run, "choose_ranks", lambda config, **of: Ranks(2, 2))
    run, out = prepared(text, lora=lora), tmp_path / "out"
    records = list(train_run(run, out, 600))
    losses = {r["step"]: r["val_loss"] for r in records if "val_loss" in r}
    assert run.best_loss == min(losses.values()) < run.loss_before - 0.2
    assert losses[run.best_step] == run.best_loss
    checkpoint = load_checkpoint(str(out))
    model = load_model(checkpoint, device="cpu", dtype="float32")
    found = evaluate(model, run.eval_windows, run.settings)
    assert found == pytest.approx(run.best_loss, abs=2e-5)  # it was rounded to 5 places for the log
    assert checkpoint.config == CONFIG
    assert checkpoint.tokenizer is not None
    assert checkpoint.tokenizer.hash == ByteTokenizer().hash
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_it_stops_when_the_val_loss_gets_worse(text: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 400)  # what is held out has nothing to do with the text
    run = prepared(text)
    run.eval_windows = [torch.from_numpy(noise[: 12 * 33]).view(12, 33)]
    run.loss_before = run.best_loss = 0.1
    run.settings = dataclasses.replace(run.settings, steps=1000, warmup_steps=2)
    records = list(train_run(run, tmp_path / "out", 600))
    evals = [record for record in records if "val_loss" in record]
    assert len(evals) == finetune_run.PATIENCE
    assert len(records) < 1000
    assert not (tmp_path / "out").exists()


def test_the_time_is_kept(text: Path, tmp_path: Path) -> None:
    run = prepared(text)
    records = list(train_run(run, tmp_path / "out", 0.0))
    assert len(records) == 1  # the current step is finished and evaluated
    assert "val_loss" in records[0]


def test_stopping_keeps_the_best_so_far(text: Path, tmp_path: Path) -> None:
    run, steps = prepared(text), iter(range(1000))
    records = list(train_run(run, tmp_path / "out", 600, lambda: next(steps) >= 24))
    assert len(records) == 25
    assert run.best_step == 25
    assert load_checkpoint(str(tmp_path / "out")).config == CONFIG


def short(text: Path, **more: object) -> FinetuneRun:
    run = prepared(text, **more)
    settings = dataclasses.replace(run.settings, steps=40)
    return dataclasses.replace(run, settings=schedule(settings))


def bits(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


def plain(records: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "tokens_per_s"} for record in records]


def resumed(text: Path, out: Path, **more: object) -> FinetuneRun:
    return prepare_run(start(), [text], CPU, saved=read_state(out), out=out, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("lora", [False, True])
def test_an_interrupted_run_resumes_exactly(
    text: Path, tmp_path: Path, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune_run, "choose_ranks", lambda config, **of: Ranks(2, 2))
    entire = short(text, lora=lora)
    expected = list(train_run(entire, tmp_path / "whole", 600))
    out = tmp_path / "cut"
    steps = train_run(short(text, lora=lora), out, 600)
    begun = [next(steps) for _ in range(25)]
    steps.close()
    # On another machine the clock would have other settings picked.
    monkeypatch.setattr("glassgpt.train.finetune.text.estimate_training", None)
    monkeypatch.setattr(finetune_run, "fit_to_time", None)
    assert is_interrupted(out)
    cut = resumed(text, out, lora=lora)
    rest = list(train_run(cut, out, cut.seconds_left))
    assert rest[0]["step"] == 21  # an evaluation, and so a save, is after every tenth
    assert plain(begun[:20] + rest) == plain(expected)
    assert (cut.best_loss, cut.best_step, cut.loss_before) == (
        entire.best_loss,
        entire.best_step,
        entire.loss_before,
    )
    assert bits(out) == bits(tmp_path / "whole")
    assert cut.finished
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_kill_between_the_checkpoint_and_the_model(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(train_run(short(text), tmp_path / "whole", 600))
    out, real, calls = tmp_path / "cut", finetune_run.write_model, []

    def cut(*of: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(finetune_run, "write_model", cut)
    with pytest.raises(KeyboardInterrupt):
        list(train_run(short(text), out, 600))
    before = bits(out)
    steps = train_run(resumed(text, out), out, 600)
    assert next(steps)["step"] == 21
    assert bits(out) != before
    list(steps)
    assert bits(out) == bits(tmp_path / "whole")


@pytest.mark.slow
def test_an_adapter_for_peft_trains_the_blocks_matrices_alone(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune_run, "choose_ranks", lambda config, blocks_only: Ranks(2, 0))
    save_checkpoint(start(), tmp_path / "base")
    options = {"model": str(tmp_path / "base"), "lora": True, "adapter": True, "format": "peft"}
    result = tune(text, out=tmp_path / "out", **options)  # type: ignore[arg-type]
    shapes = [shape for name, shape in CONFIG.shapes().items() if name.startswith("h.") and len(shape) == 2]
    assert result.improved
    assert result.trained_parameters == sum(2 * sum(shape) for shape in shapes)
    base, tuned = load_checkpoint(tmp_path / "base"), load_checkpoint(tmp_path / "out")
    assert tuned.format == "peft"
    changed = {name for name in base.tensors if (base.tensors[name] != tuned.tensors[name]).any()}
    assert changed == {
        name for name in base.tensors if name.startswith("h.") and base.tensors[name].ndim == 2
    }
    with pytest.raises(SettingError, match="Add --lora --adapter"):
        tune(text, out=tmp_path / "other", format="peft")
    with pytest.raises(SettingError, match="not glassgpt or peft"):
        tune(text, out=tmp_path / "other", **{**options, "format": "x"})  # type: ignore[arg-type]


def test_peft_takes_its_ranks_from_the_blocks_alone() -> None:
    plain, thin = (choose_ranks(SIZES["gpt2"], blocks_only=only) for only in (False, True))
    assert (thin.blocks > plain.blocks, thin.embedding) == (True, 0)


def test_a_stopped_run_resumes(text: Path, tmp_path: Path) -> None:
    list(train_run(short(text), tmp_path / "whole", 600))
    out, run = tmp_path / "out", short(text)
    assert len(list(train_run(run, out, 600, lambda: run.steps >= 24))) == 25
    assert not run.finished
    more = resumed(text, out)
    assert more.seconds_left <= read_state(out)["seconds_left"] <= 600  # the time until then counts
    assert [record["step"] for record in train_run(more, out, 600)] == list(range(26, 41))
    assert bits(out) == bits(tmp_path / "whole")
    assert not is_interrupted(out)


def test_a_run_resumes_with_what_it_started_with(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    steps = train_run(short(text), out, 600)
    next(steps)
    steps.close()
    with pytest.raises(SettingError, match="started with another --seed"):
        resumed(text, out, seed=1)
    with pytest.raises(SettingError, match="started with another --lora"):
        resumed(text, out, lora=True)
    with pytest.raises(SettingError, match="started with another --format"):
        resumed(text, out, adapter_format="peft")
    other = tmp_path / "other.txt"
    other.write_text(text.read_text().replace("tide", "time"))
    with pytest.raises(SettingError, match="started with another text"):
        resumed(other, out)
    state = state_folder(out) / STATE
    state.write_text(state.read_text().replace('"steps"', '"stairs"'))
    with pytest.raises(FileFormatError, match=r"tuning\.json is damaged\. Remove"):
        resumed(text, out)
    state.write_text("{}")
    with pytest.raises(FileFormatError, match=r"tuning\.json is damaged"):
        read_state(out)


def test_a_nan_loss_says_what_was_written(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, steps = loop.train_step, []

    def train_step(*of: object) -> tuple[float, float, bool]:
        steps.append(1)
        return (math.nan, math.nan, False) if len(steps) == 15 else real(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "train_step", train_step)
    with pytest.raises(NonFiniteLossError, match=r"step 15 is nan.*is in .*out\. Try another --seed"):
        list(train_run(prepared(text), tmp_path / "out", 600))
    assert not state_folder(tmp_path / "out").exists()


def test_the_same_seed_gives_the_same_file(text: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run = prepared(text)
        run.settings = dataclasses.replace(run.settings, steps=10)
        list(train_run(run, tmp_path / name, 600))
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.slow
def test_hugging_face_loads_it(text: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run, out = prepared(text), tmp_path / "out"
    list(train_run(run, out, 600))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    ids = torch.cat(run.eval_windows)
    with torch.no_grad():
        logits = theirs(ids[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()
    assert math.isclose(loss, run.best_loss, abs_tol=1e-4)
    assert json.loads((out / "config.json").read_text())["model_type"] == "gpt2"


def test_the_reported_loss_is_measured_in_float32(text: Path, tmp_path: Path) -> None:
    """Learned in bfloat16, the evaluations are a little off; the figures before and after are not."""
    run = prepared(text)
    run.settings = dataclasses.replace(run.settings, precision="bfloat16", steps=20)
    list(train_run(run, tmp_path / "out", 600))
    tuned = load_model(load_checkpoint(str(tmp_path / "out")), device="cpu", dtype="float32")
    exact = evaluate(tuned.double(), run.eval_windows, dataclasses.replace(run.settings, precision="float32"))
    assert measure_loss(tuned.float(), run.eval_windows, run.settings) == pytest.approx(exact, abs=1e-5)
    assert run.best_loss != pytest.approx(exact, abs=1e-5)
    assert run.best_loss == pytest.approx(
        exact, abs=2e-2
    )  # bfloat16 keeps 8 bits: logits of 5 are off by 2e-2
    start_loss = measure_loss(
        load_model(start(), device="cpu", dtype="float32"), run.eval_windows, run.settings
    )
    assert run.loss_before == pytest.approx(start_loss, abs=1e-6)


@pytest.mark.parametrize("speed", [10.0, 1000.0, 1e6])
def test_a_slow_machine_evaluates_fewer_windows(speed: float) -> None:
    plan = Estimate(
        choose_settings(CONFIG, 1000, lora=False), largest_micro_batch=1, parameters=0, weights=0,
        gradients=0, optimizer=0, activations=0, tokens_per_step=1000, tokens_per_s=speed, peak_flops=1.0,
        flops_per_token=1.0,
    )  # fmt: skip
    windows = [torch.full((2, 101), n) for n in range(100)]
    chosen = [int(batch[0, 0]) for batch in sample_windows(windows, plan, 60.0)]
    gaps = set(np.diff(chosen).tolist())
    assert len(gaps) <= 1  # from all over the text
    seconds = len(chosen) * 200 / 3 / speed
    assert seconds <= 1.5 or len(chosen) == 1
    assert len(chosen) == 100 or seconds > 0.7


def test_fewer_evals_where_one_takes_long() -> None:
    settings = choose_settings(CONFIG, 1_000_000, lora=False)
    plan = Estimate(
        settings, largest_micro_batch=1, parameters=0, weights=0, gradients=0, optimizer=0, activations=0,
        tokens_per_step=1000, tokens_per_s=1000.0, peak_flops=1.0, flops_per_token=1.0,
    )  # fmt: skip
    quick, slow = (fit_to_time(settings, plan, tokens, seconds=600) for tokens in (300, 30_000))
    assert quick.steps // quick.eval_every in (finetune_settings.MAX_EVALS - 1, finetune_settings.MAX_EVALS)
    assert slow.steps // slow.eval_every in range(finetune_settings.MIN_EVALS, 8)
    for limited, each in ((quick, 0.1), (slow, 10.0)):
        assert 500 < limited.steps + limited.steps // limited.eval_every * each < 560


def test_on_a_cpu_attention_drops_nothing_and_the_folder_keeps_its_config(text: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, attn_pdrop=0.1, resid_pdrop=0.2)
    run = prepare_run(dataclasses.replace(start(), config=config), [text], CPU)
    assert [block.attn.attn_pdrop for block in run.model.h] == [0.0, 0.0]
    assert [block.mlp.resid_pdrop for block in run.model.h] == [0.2, 0.2]
    finetune_run.write_model(run, tmp_path / "out")
    assert load_checkpoint(str(tmp_path / "out")).config == config


def test_of_a_long_text_nothing_is_dropped(text: Path) -> None:
    text.write_text(text.read_text() * 20)
    config = dataclasses.replace(CONFIG, embd_pdrop=0.1, resid_pdrop=0.2)
    model = prepare_run(dataclasses.replace(start(), config=config), [text], CPU).model
    assert {model.config.embd_pdrop, *(block.mlp.resid_pdrop for block in model.h)} == {0.0}


# The library's function.


class Watching(Reporter):
    """Counts what is reported, and stops after some steps."""

    def __init__(self, stop_after: int = 10**9) -> None:
        self.stop_after, self.stages, self.plans, self.records = stop_after, [], [], []

    def stage(self, description: str) -> AbstractContextManager[object]:
        self.stages.append(description)
        return nullcontext()

    def show_plan(self, run: FinetuneRun) -> None:
        run.settings = schedule(dataclasses.replace(run.settings, steps=20, lr=5e-3, precision="float32"))
        self.plans.append(run)

    def log(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)

    def stop(self) -> bool:
        return len(self.records) + 1 >= self.stop_after


@pytest.fixture
def model(tmp_path: Path) -> str:
    save_checkpoint(start(), tmp_path / "model")
    return str(tmp_path / "model")


def test_tune_in_python(text: Path, model: str, tmp_path: Path) -> None:
    seen = Watching()
    result = tune(text, model=model, out=tmp_path / "out", device="cpu", prompt="At 3", reporter=seen)
    assert isinstance(result, TuneResult)
    assert result.out == tmp_path / "out"
    assert result.improved
    assert result.finished
    assert result.perplexity_after is not None
    assert result.perplexity_after < 0.9 * result.perplexity_before
    assert (result.steps, len(seen.records), len(seen.plans), len(seen.stages)) == (20, 20, 1, 2)
    assert result.best_step in (10, 20)
    assert result.trained_parameters == result.parameters
    assert result.sample_before.startswith("At 3")
    assert result.sample_after is not None
    assert result.sample_after.startswith("At 3")
    tuned = result.load(device="cpu", dtype="float32")
    (run,) = seen.plans
    loss = measure_loss(tuned.torch_model, run.eval_windows, run.settings)
    assert math.exp(loss) == pytest.approx(result.perplexity_after, rel=1e-6)
    with pytest.raises(SettingError, match="already exists"):
        tune(text, model=model, out=tmp_path / "out", device="cpu")


@pytest.mark.slow
def test_tune_resumes_in_python(text: Path, model: str, tmp_path: Path) -> None:
    entire = tune([text], model=model, out=tmp_path / "whole", device="cpu", reporter=Watching())
    seen = Watching(stop_after=13)
    stopped = tune([text], model=model, out=tmp_path / "out", device="cpu", reporter=seen, stop=seen.stop)
    assert not stopped.finished
    assert stopped.steps == 13
    with pytest.raises(SettingError, match="belongs to an interrupted run"):
        tune([text], model=model, out=tmp_path / "out", device="cpu")
    with pytest.raises(SettingError, match="use one of them"):
        tune([text], model=model, out=tmp_path / "out", resume=True, force=True)
    resumed = tune([text], model=model, out=tmp_path / "out", device="cpu", resume=True)
    assert resumed.finished
    assert resumed.perplexity_after == entire.perplexity_after
    assert bits(tmp_path / "out") == bits(tmp_path / "whole")


def test_tune_without_improvement_writes_nothing(
    text: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FinetuneRun, "record_eval", lambda *of: False)
    result = tune(text, model=model, out=tmp_path / "out", device="cpu", reporter=Watching())
    assert not result.improved
    assert result.perplexity_after is None
    assert not (tmp_path / "out").exists()
    with pytest.raises(SettingError, match="did not improve"):
        result.load()


@pytest.mark.slow
def test_tune_never_imports_the_command_line(text: Path, model: str, tmp_path: Path) -> None:
    program = (
        "import sys; from glassgpt.train.finetune.tune import tune; "
        "tune(sys.argv[1], model=sys.argv[2], out=sys.argv[3], device='cpu', minutes=0.01); "
        "sys.exit(any(name.startswith('glassgpt.cli') for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program, text, model, tmp_path / "out"], check=True)


def test_ctrl_c_in_python_ends_the_step_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[bool] = []

    def run_tune(run: object, target: object, *, stopping: Stopping, **options: object) -> None:
        with stopping(True) as stop:
            stopped.append(stop())
            signal.raise_signal(signal.SIGINT)  # the step goes on
            stopped.append(stop())

    monkeypatch.setattr(finetune, "plan_tune", lambda *of, **options: (None, None))
    monkeypatch.setattr(finetune, "run_tune", run_tune)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            finetune.tune("my.txt")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped == [False, True]
