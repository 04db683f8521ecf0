"""The loop that made the shipped model: it learns, resumes exactly, and never saves non-finite values."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from glassgpt.config import Config
from glassgpt.errors import FileFormatError, NonFiniteLossError, SettingError
from glassgpt.files import atomic_write
from glassgpt.model import GPT2
from glassgpt.train.checkpoint.load import read_training_state
from glassgpt.train.checkpoint.run_folder import list_checkpoints
from glassgpt.train.distributed.parallelize import parallelize
from glassgpt.train.distributed.process_group import ProcessGroup
from glassgpt.train.layers.float8 import DLOGITS_SCALE
from glassgpt.train.loop import evaluate, train_loop
from glassgpt.train.micro_batch import AutoMicroBatch
from glassgpt.train.objectives import loss
from glassgpt.train.objectives.objective import Batch, LanguageModeling
from glassgpt.train.optim import BatchedMuon, make_optimizers
from glassgpt.train.schedule import lr_ratio
from glassgpt.train.settings import TrainSettings
from glassgpt.train.step import StepResult, train_step
from glassgpt.weights import load_checkpoint

SETTINGS = TrainSettings(
    steps=12,
    batch_size=4,
    context=16,
    lr=1e-2,
    optimizer="muon",
    warmup_steps=3,
    eval_every=4,
    eval_batches=1,
    save_every=4,
)


def counting() -> np.ndarray:
    """A language in which each word is followed by the next, and sometimes by the one after."""
    rng = np.random.default_rng(0)
    return (np.cumsum(rng.integers(1, 3, 3000)) % 23).astype(np.uint16)


class Windows:
    """Batches as a function of the step."""

    def __init__(self, settings: TrainSettings) -> None:
        self.settings = settings

    def __call__(self, step: int) -> Iterator[torch.Tensor]:
        while True:
            yield self.batch(step)
            step += 1

    def batch(self, step: int) -> torch.Tensor:
        ids, s = counting(), self.settings
        starts = np.random.default_rng([s.seed, step]).integers(0, 2400 - s.context - 1, s.batch_size)
        return torch.from_numpy(np.stack([ids[i : i + s.context + 1] for i in starts]).astype(np.int64))


HELD_OUT = [torch.from_numpy(counting()[i : i + 4 * 17].astype(np.int64)).view(4, 17) for i in (2410, 2600)]


def fresh() -> GPT2:
    torch.manual_seed(3)
    return GPT2(Config(vocab_size=23, n_positions=16, n_embd=32, n_layer=2, n_head=2))


def run(model: GPT2, out: Path, settings: TrainSettings = SETTINGS, stop: int | None = None) -> list[dict]:
    records = []
    for record in train_loop(model, Windows(settings), HELD_OUT, out, settings):
        records.append(record)
        if record["step"] == stop:
            break
    return records


def strip(records: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if k != "tokens_per_s"} for record in records]


def loss_of(
    model: GPT2, ids: torch.Tensor, targets: torch.Tensor, settings: TrainSettings | None = None
) -> torch.Tensor:
    """The summed loss, as a training step computes it."""
    module = parallelize(model, TrainSettings(steps=1) if settings is None else settings)
    summed, _ = module(ids, targets, torch.ones_like(targets, dtype=torch.bool))
    return summed


def step_once(
    model: GPT2, tokens: torch.Tensor, optimizers: list, scaler: torch.amp.GradScaler, settings: TrainSettings
) -> StepResult:
    module = parallelize(model, settings)
    return train_step(
        Batch.from_tokens(tokens), module, optimizers, scaler, AutoMicroBatch(settings), ProcessGroup()
    )


@pytest.mark.slow
def test_the_loss_falls_towards_what_can_be_known(tmp_path: Path) -> None:
    model = fresh()
    records = run(
        model,
        tmp_path,
        TrainSettings(steps=80, batch_size=8, context=16, lr=1e-2, optimizer="muon", warmup_steps=5),
    )
    assert records[0]["loss"] == pytest.approx(np.log(23), abs=0.2)
    assert records[-1]["val_loss"] < 1.0  # a fair coin decides each step: log 2 is the best there is


@pytest.mark.parametrize("stop", [5, 8, 11])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, stop: int) -> None:
    """With dropout on. The steps since the last save are done again and come out the same."""
    full = fresh()
    expected = run(full, tmp_path / "whole")
    run(fresh(), tmp_path / "cut", stop=stop)
    torch.manual_seed(999)  # another process starts with other random numbers
    resumed = fresh()
    rest = run(resumed, tmp_path / "cut")
    assert rest[0]["step"] == stop // 4 * 4 + 1
    assert strip(rest) == strip(expected)[rest[0]["step"] - 1 :]
    for name, value in full.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    log = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert strip(log) == strip(expected)


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    often = run(fresh(), tmp_path / "often", TrainSettings(**{**vars(SETTINGS), "eval_every": 1}))
    seldom = run(fresh(), tmp_path / "seldom", TrainSettings(**{**vars(SETTINGS), "eval_every": 100}))
    assert [r["loss"] for r in often] == [r["loss"] for r in seldom]


def test_a_run_is_a_model_that_loads(tmp_path: Path) -> None:
    model = fresh()
    run(model, tmp_path)
    checkpoint = load_checkpoint(str(tmp_path))
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(checkpoint.tensors[name], value.numpy())


def test_whoever_finds_a_checkpoint_finds_the_model_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill may fall between any two files of a save. (CI once hit the gap before config.json.)"""
    moments: list[bool] = []

    @contextmanager
    def watched(path: Path, **more: bool) -> Iterator[Path]:
        with atomic_write(path, **more) as part:
            yield part
        if list_checkpoints(tmp_path):
            moments.append((tmp_path / "config.json").exists() and (tmp_path / "model.safetensors").exists())

    monkeypatch.setattr("glassgpt.train.checkpoint.save.atomic_write", watched)
    run(fresh(), tmp_path, stop=4)
    assert moments
    assert all(moments)


def test_a_loss_that_is_not_a_number_never_reaches_the_weights(tmp_path: Path) -> None:
    model = fresh()
    run(model, tmp_path, stop=4)
    saved = [folder.name for folder in list_checkpoints(tmp_path)]
    broken = fresh()
    steps = train_loop(broken, Windows(SETTINGS), HELD_OUT, tmp_path, SETTINGS)
    next(steps)
    with torch.no_grad():
        broken.ln_f.weight[0] = float("nan")
    with pytest.raises(NonFiniteLossError, match="step 6 is nan") as caught:
        next(steps)
    assert caught.value.exit_code == 3
    assert [folder.name for folder in list_checkpoints(tmp_path)] == saved == ["step-00000004"]


class Poisoned(Windows):
    """In some steps, counted from 1, one of the model's weights is NaN."""

    def __init__(self, settings: TrainSettings, model: GPT2, bad: set[int]) -> None:
        super().__init__(settings)
        self.model, self.bad = model, bad
        self.sound = model.ln_f.weight.detach().clone()

    def batch(self, step: int) -> torch.Tensor:
        with torch.no_grad():
            if step in self.bad:
                self.model.ln_f.weight.copy_(self.sound)
            if step + 1 in self.bad:
                self.sound = self.model.ln_f.weight.detach().clone()
                self.model.ln_f.weight[0] = float("nan")
        return super().batch(step)


def test_bad_steps_are_skipped_when_asked_and_move_nothing(tmp_path: Path) -> None:
    """Steps 6 and 7 are bad, and 10; two in a row are put up with."""
    settings = TrainSettings(**{**vars(SETTINGS), "skip_bad_steps": 2, "eval_every": 100})
    model = fresh()
    weights = {}
    for record in train_loop(model, Poisoned(settings, model, {6, 7, 10}), HELD_OUT, tmp_path, settings):
        weights[record["step"]] = model.wte.weight.detach().clone()
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [record["step"] for record in log] == list(range(1, 13))
    assert [record["step"] for record in log if "skipped" in record] == [6, 7, 10]
    assert [record["loss"] for record in log if "skipped" in record] == [None, None, None]
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()
    for step in range(2, 13):
        assert torch.equal(weights[step], weights[step - 1]) == (step in {6, 7, 10})
    for folder in list_checkpoints(tmp_path):
        assert all(torch.isfinite(value).all() for value in read_training_state(folder)[0].values())


def test_more_bad_steps_in_a_row_than_allowed_end_the_run(tmp_path: Path) -> None:
    settings = TrainSettings(**{**vars(SETTINGS), "skip_bad_steps": 1})
    model = fresh()
    with pytest.raises(NonFiniteLossError, match=r"step 7 \(2 consecutive bad steps\) is nan"):
        list(train_loop(model, Poisoned(settings, model, {3, 6, 7}), HELD_OUT, tmp_path, settings))
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000004"]


def test_broken_weights_are_not_saved(tmp_path: Path) -> None:
    """Here they break for good just when they would be saved, and bad steps are put up with."""
    settings = TrainSettings(**{**vars(SETTINGS), "skip_bad_steps": 5})
    model = fresh()
    with pytest.raises(NonFiniteLossError, match=r"model.ln_f.weight is not finite after step 8"):
        list(train_loop(model, Poisoned(settings, model, {8, 9, 10}), HELD_OUT, tmp_path, settings))
    assert [folder.name for folder in list_checkpoints(tmp_path)] == ["step-00000004"]
    assert all(np.isfinite(value).all() for value in load_checkpoint(str(tmp_path)).tensors.values())


def test_a_half_precision_overflow_updates_nothing_and_is_not_a_bad_step(tmp_path: Path) -> None:
    """The scaler's own business. Muon's gradients are finite here, AdamW's are not: neither moves."""
    model = fresh()
    optimizers = make_optimizers(model, SETTINGS)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.ln_f.weight.register_hook(lambda grad: grad * float("nan"))
    batch = Windows(SETTINGS).batch(0)
    result = step_once(model, batch, optimizers, scaler, SETTINGS)
    assert np.isfinite(result.loss)
    assert np.isnan(result.grad_norm)
    assert not result.updated
    assert scaler.get_scale() == 2.0**15
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path, damage: str) -> None:
    expected = run(fresh(), tmp_path / "whole")
    run(fresh(), tmp_path / "cut", stop=8)
    newest, before = list_checkpoints(tmp_path / "cut")[-1], list_checkpoints(tmp_path / "cut")[-2]
    for folder, again in ((newest, 5), (before, 0)):
        file = folder / "training.safetensors"
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content[:-10] if damage == "cut" else content)
        if again:
            with pytest.warns(UserWarning, match=f"{folder.name}/training.safetensors is damaged"):
                assert strip(run(fresh(), tmp_path / "cut", stop=6)) == strip(expected[4:6])
    full = pytest.raises(FileFormatError, match=r"no checkpoint in .* is intact")
    with pytest.warns(UserWarning, match="is damaged"), full:
        run(fresh(), tmp_path / "cut")


def test_the_last_few_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    run(
        fresh(),
        tmp_path,
        TrainSettings(**{**vars(SETTINGS), "save_every": 1, "eval_every": 1, "keep_checkpoints": 2}),
    )
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    best = min(log, key=lambda record: record["val_loss"])["step"]
    assert {int(folder.name[5:]) for folder in list_checkpoints(tmp_path)} == {11, 12, best}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "b"}, "--data has different tokens"),
        ({"context": 9, "seed": 2}, "context was 8 and is 9, seed was 1 and is 2"),
    ],
)
def test_a_run_is_not_resumed_with_other_tokens(tmp_path: Path, change: dict, message: str) -> None:
    data = {"data": "a", "context": 8, "rows": 4, "seed": 1}

    def resume(identity: dict) -> list[dict]:
        return list(train_loop(fresh(), Windows(SETTINGS), HELD_OUT, tmp_path, SETTINGS, data=identity))

    assert len(resume(data)) == 12
    assert resume(data) == []
    with pytest.raises(SettingError, match=message):
        resume({**data, **change})


def test_micro_batches_give_the_same_update(tmp_path: Path) -> None:
    """The mean is over the tokens of the update. (Without dropout, which would draw other numbers.)"""

    def losses(**changes: object) -> list[float]:
        torch.manual_seed(3)
        model = GPT2(
            Config(
                vocab_size=23, n_positions=16, n_embd=32, n_layer=2, n_head=2,
                embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
            )
        )  # fmt: skip
        name = "-".join(map(str, changes.values()))
        return [
            r["loss"]
            for r in run(model, tmp_path / f"run{name}", TrainSettings(**{**vars(SETTINGS), **changes}))
        ]

    # Twelve float32 updates in another order of summation.
    assert losses(micro_batch_size=1) == pytest.approx(losses(), abs=2e-3)


def test_a_request_to_stop_saves_first(tmp_path: Path) -> None:
    steps = list(train_loop(fresh(), Windows(SETTINGS), HELD_OUT, tmp_path, SETTINGS, stop=lambda: True))
    assert [record["step"] for record in steps] == [1]
    assert run(fresh(), tmp_path)[0]["step"] == 2


@pytest.mark.parametrize(
    "precision", ["bfloat16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("float16", "float8"))]
)
def test_half_precision_learns_too(tmp_path: Path, precision: str) -> None:
    settings = TrainSettings(
        steps=60, batch_size=8, context=16, lr=1e-2, optimizer="muon", warmup_steps=5, precision=precision
    )
    assert run(fresh(), tmp_path, settings)[-1]["val_loss"] < 1.1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        (
            {"batch_size": 6, "micro_batch_size": 4},
            "micro_batch_size 4 does not divide batch_size 6. Choose one of 1, 2, 3, 6",
        ),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"precision": "int3"}, "precision 'int3' is not one of auto, float32, bfloat16, float16"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0"),
        ({"z_loss": -1.0}, "z_loss is -1.0"),
        ({"schedule": "linear"}, "schedule 'linear' is not one of"),
    ],
)
def test_settings_that_cannot_be(change: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TrainSettings(**{"steps": 5, **change})


@pytest.mark.slow
def test_a_compiled_step_is_the_same_step(tmp_path: Path) -> None:
    """To rounding: compiled code may sum in another order. (Without dropout, which it draws otherwise.)"""

    def losses(name: str, compile: bool) -> list[float]:
        torch.manual_seed(3)
        config = Config(
            vocab_size=23, n_positions=16, n_embd=32, n_layer=2, n_head=2,
            embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
        )  # fmt: skip
        settings = TrainSettings(**{**vars(SETTINGS), "compile": compile, "steps": 4})
        return [record["loss"] for record in run(GPT2(config), tmp_path / name, settings)]

    assert losses("compiled", True) == pytest.approx(losses("plain", False), abs=1e-4)


@pytest.mark.parametrize(
    "wanted", [{}, {"z_loss": 0.01}, {"label_smoothing": 0.1}, {"z_loss": 0.02, "label_smoothing": 0.2}]
)
def test_the_chunked_loss_is_the_loss(monkeypatch: pytest.MonkeyPatch, wanted: dict[str, float]) -> None:
    """In float64 beside torch's own. The reported loss is the plain one, whatever else is trained for."""
    torch.manual_seed(5)
    model = fresh().eval().double()
    ids, targets = torch.randint(0, 23, (5, 16)), torch.randint(0, 23, (5, 16))
    targets[0, :7] = loss.IGNORE_INDEX
    logits = 20 * model(ids).flatten(0, 1)  # far from uniform, so that a wrong factor shows
    reported, trained = (
        torch.nn.functional.cross_entropy(
            logits,
            targets.flatten(),
            ignore_index=loss.IGNORE_INDEX,
            reduction="sum",
            label_smoothing=smoothing,
        )
        for smoothing in (0.0, wanted.get("label_smoothing", 0.0))
    )
    counted = logits[targets.flatten() != loss.IGNORE_INDEX]
    (trained + wanted.get("z_loss", 0.0) * counted.logsumexp(-1).square().sum()).backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    monkeypatch.setattr(loss, "CHUNK", 13)

    def scaled(
        logits: torch.Tensor, targets: torch.Tensor, vocab_size: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        value, dlogits = plain.cross_entropy(20 * logits, targets, vocab_size)
        return value, 20 * dlogits

    settings = TrainSettings(steps=1, **wanted)
    plain = LanguageModeling.from_settings(settings, model)
    module = parallelize(model, settings, objective=LanguageModeling(scaled))
    ours, count = module(ids, targets, targets != loss.IGNORE_INDEX)
    assert count == 5 * 16 - 7
    ours.backward()
    assert ours.item() == pytest.approx(reported.item(), rel=1e-12)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-9)


def test_padding_of_the_vocabulary_gets_nothing() -> None:
    torch.manual_seed(1)
    logits, targets = torch.randn(7, 23), torch.randint(0, 23, (7,))
    padded = torch.cat([logits, 9 + torch.randn(7, 9)], dim=1)
    for options in ({}, {"z_loss": 0.1, "label_smoothing": 0.2}):
        expected, dlogits = loss.cross_entropy_with_grad(logits, targets, 23, **options)
        found, dlogits_of_padded = loss.cross_entropy_with_grad(padded, targets, 23, **options)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(dlogits_of_padded[:, :23], dlogits)
        assert dlogits_of_padded[:, 23:].abs().max() == 0


@pytest.mark.parametrize(("precision", "within"), [("bfloat16", 0.02), ("float8", 0.15)])
def test_low_precision_gives_the_gradient_to_its_rounding(precision: str, within: float) -> None:
    """As float32, for weights that stay float32. bfloat16 keeps 8 bits of a number, so each product is off by
    about 0.2 %; e4m3 keeps four and e5m2 three, about 3 and 5 %, and four such products follow each other."""
    torch.manual_seed(3)
    config = Config(vocab_size=23, n_positions=16, n_embd=64, n_layer=2, n_head=2)
    model = GPT2(config).eval()
    ids, targets = HELD_OUT[0][:, :-1], HELD_OUT[0][:, 1:]
    with torch.no_grad():  # as if trained a little: at the start most gradients are close to zero
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    with torch.no_grad():
        logits = model(ids)
    loss_of(model, ids, targets).backward()
    exact = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    loss_of(model, ids, targets, TrainSettings(steps=1, precision=precision)).backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    errors = [(parameter.grad - exact[name]).flatten() for name, parameter in model.named_parameters()]
    error = torch.cat(errors).norm() / torch.cat([value.flatten() for value in exact.values()]).norm()
    assert within / 20 < error < within
    with torch.no_grad():  # who generates with the model meanwhile gets plain products
        assert torch.equal(model(ids), logits)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activation_checkpointing_gives_the_same_run(tmp_path: Path, precision: str) -> None:
    """Bit for bit, with dropout: the second time a block draws the numbers of the first."""
    plain, again = fresh(), fresh()
    expected = run(plain, tmp_path / "plain", TrainSettings(**{**vars(SETTINGS), "precision": precision}))
    settings = TrainSettings(**{**vars(SETTINGS), "precision": precision, "activation_checkpointing": True})
    assert strip(run(again, tmp_path / "again", settings)) == strip(expected)
    for name, value in plain.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_activation_checkpointing_stores_less_for_the_backward_pass() -> None:
    def stored(checkpointing: bool) -> int:
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            seen[tensor.data_ptr()] = tensor.numel()
            return tensor

        model = fresh()
        settings = TrainSettings(steps=1, activation_checkpointing=checkpointing)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss_of(model, *HELD_OUT[0][:, :-1].split(2), settings)
        return sum(seen.values())

    assert stored(True) < stored(False) / 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("wanted", [{}, {"z_loss": 0.01, "label_smoothing": 0.2}])
@pytest.mark.parametrize(("vocabulary", "width"), [(23, 64), (5000, 5056), (50257, 50304)])
def test_the_kernel_is_the_plain_cross_entropy(wanted: dict[str, float], vocabulary: int, width: int) -> None:
    """With targets that do not count and columns that are padding; and its float8 copy of the gradient."""
    from glassgpt.train.objectives import loss_kernel

    torch.manual_seed(5)
    logits, targets = 9 * torch.randn(70, width, device="cuda"), torch.randint(0, vocabulary, (70,)).cuda()
    targets[:3] = loss.IGNORE_INDEX
    expected, dlogits = loss.cross_entropy_with_grad(logits.clone(), targets, vocabulary, **wanted)
    narrow = torch.empty(logits.shape, device="cuda", dtype=torch.float8_e5m2)
    found, ours = loss_kernel.cross_entropy_with_grad(
        logits.clone(), targets, vocabulary, **wanted, dlogits8=narrow
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, dlogits, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(narrow.float() / DLOGITS_SCALE, dlogits, rtol=0.13, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_too_a_non_finite_loss_updates_nothing() -> None:
    """There the optimizer is launched before the loss is read, and skips what is not finite."""
    model = fresh().cuda()
    settings = TrainSettings(steps=1, batch_size=4, context=16)
    optimizers = make_optimizers(model, settings)
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    batch = torch.randint(0, 23, (4, 17), device="cuda")
    assert step_once(model, batch, optimizers, scaler, settings).updated
    before = {name: value.clone() for name, value in model.state_dict().items()}
    memory = copy.deepcopy(optimizers[0].state_dict())
    hook = model.ln_f.register_forward_hook(lambda module, inputs, output: output * float("nan"))
    assert not step_once(model, batch, optimizers, scaler, settings).updated
    hook.remove()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(optimizers[0].state_dict()["state"], memory["state"], rtol=0, atol=0)
    assert step_once(model, batch, optimizers, scaler, settings).updated


def test_frozen_weights_are_rounded_and_get_no_gradient() -> None:
    model = fresh()
    model.h[0].requires_grad_(False)
    ids = torch.randint(0, 23, (2, 16))
    loss_of(model, ids, ids, TrainSettings(steps=1, precision="bfloat16")).backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == name.startswith("h.0."), name


def test_muon_for_a_gpu_is_torchs_muon() -> None:
    torch.manual_seed(3)
    ours, theirs = fresh(), fresh()
    theirs.load_state_dict(ours.state_dict())
    muons = [
        kind([p for p in model.h.parameters() if p.ndim == 2], lr=0.02, weight_decay=0.1, momentum=0.95)
        for kind, model in ((BatchedMuon, ours), (torch.optim.Muon, theirs))
    ]
    for _ in range(4):
        for a, b in zip(ours.h.parameters(), theirs.h.parameters(), strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        for muon in muons:
            muon.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-4, msg=name)  # of products in bfloat16


def test_decay_pulls_on_matrices_only() -> None:
    model = fresh()
    adamw, muon = make_optimizers(model, SETTINGS)
    decayed, free = adamw.param_groups
    assert all(p.ndim == 2 for p in decayed["params"])
    assert decayed["weight_decay"] == 0.1
    assert all(p.ndim == 1 for p in free["params"])
    assert free["weight_decay"] == 0
    assert len(muon.param_groups[0]["params"]) == 4 * model.config.n_layer
    counted = sum(len(group["params"]) for group in (decayed, free, muon.param_groups[0]))
    assert counted == len(list(model.parameters()))


def test_the_schedule_rises_in_a_line_and_falls_in_a_cosine() -> None:
    shares = [lr_ratio(TrainSettings(steps=110, warmup_steps=10), step) for step in range(110)]
    assert shares[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert max(shares) == 1
    assert shares[60] == pytest.approx(0.05 + 0.95 * 0.5)
    assert shares[-1] == pytest.approx(0.05, abs=1e-3)
    steady = [
        lr_ratio(TrainSettings(steps=110, warmup_steps=10, schedule="wsd"), step) for step in range(110)
    ]
    assert set(steady[10:90]) == {1.0}
    assert steady[100] == pytest.approx(0.525)
    assert lr_ratio(TrainSettings(steps=9, warmup_steps=0, schedule="constant"), 8) == 1


def test_evaluation_is_the_same_every_time() -> None:
    model = fresh()
    assert evaluate(model, HELD_OUT, SETTINGS) == evaluate(model, HELD_OUT, SETTINGS)
    assert model.training
