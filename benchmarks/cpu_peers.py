"""GlassGPT's native engine beside the fast ways to run GPT-2 on a CPU, on the same weights, in turns.

    python -m venv peers
    peers/bin/pip install llama-cpp-python openvino optimum-intel nncf onnx onnxruntime ctranslate2 \\
        torch transformers
    python benchmarks/cpu_peers.py --peers peers/bin/python --rounds 5
    python benchmarks/cpu_peers.py --peers peers/bin/python --perplexity FILE.txt   # int4 beside Q4_0

Weights are random in the shape of GPT-2 small (speed does not depend on them). Every contestant is a process
of its own that loads its model once and then waits; in each round each of them runs each task: 128 tokens
after a prompt of 32, a prompt of 1,023 tokens, and 32 tokens each for 16 and 64 texts at once after prompts
of 32. All decode greedily and take the largest logit with numpy, but for CTranslate2, which has only a loop
of its own. Medians, and ratios to GlassGPT of the same round with their spread, as a table for
docs/performance.md; what fraction of this machine's memory and int8 arithmetic that is; then one line of
JSON. A peer that is not installed is left out, and named.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT, NEW = 32, 128
TASKS = ("one text", "prompt of 1,023", "16 texts", "64 texts")
STEPS_IN_BATCH = 32
OURS = ("glassgpt int8", "glassgpt int4")
PEERS = (
    "llama.cpp Q8_0", "llama.cpp Q4_0", "openvino int8", "openvino int4", "onnxruntime int8",
    "ctranslate2 int8", "transformers bfloat16",
)  # fmt: skip

Step = Callable[[Any, int], Any]  # (ids (B, T), how many came before) -> the likeliest next tokens (B,)
Reset = Callable[[int], Step]  # rows -> a step on an empty cache


# ---- the contestants: each returns a function that starts anew with so many rows ----


def glassgpt(folder: Path, kind: str, threads: int) -> Reset:
    from glassgpt.backends.native.backend import NativeBackend
    from glassgpt.backends.native.weights import Weights
    from glassgpt.weights import load_checkpoint

    weights = Weights(load_checkpoint(str(folder / "hf")), dtype=kind, threads=threads)

    def reset(rows: int) -> Step:
        backend = NativeBackend(weights, rows)

        def step(ids: Any, past: int) -> Any:
            return backend.extend(range(rows), ids, [past] * rows).argmax(axis=1)

        return step

    return reset


def quantize_gguf(folder: Path, kind: str) -> Path:
    import llama_cpp

    path = folder / f"{kind}.gguf"
    if not path.exists():
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = {"Q8_0": 7, "Q4_0": 2}[kind]
        params.pure = True  # every matrix in the type that is named
        assert not llama_cpp.llama_model_quantize(
            str(folder / "f32.gguf").encode(), str(path).encode(), ctypes.byref(params)
        )
    return path


def llama(folder: Path, kind: str, threads: int) -> Reset:
    import llama_cpp
    import numpy as np

    path = quantize_gguf(folder, kind)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    contexts: dict[int, Any] = {}

    def context(rows: int) -> Any:
        if rows not in contexts:
            params = llama_cpp.llama_context_default_params()
            params.n_ctx = 1024 if rows == 1 else rows * (PROMPT + STEPS_IN_BATCH + 64)
            params.n_batch, params.n_ubatch = 64 * PROMPT, 512
            params.n_seq_max, params.n_threads, params.n_threads_batch = rows, threads, threads
            params.kv_unified = False  # a cache for each text: attention does not cross them
            contexts[rows] = llama_cpp.llama_init_from_model(model, params)
        return contexts[rows]

    def reset(rows: int) -> Step:
        state = context(rows)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(state), True)
        batch = llama_cpp.llama_batch_init(max(64 * PROMPT, 1024), 0, 1)

        def step(ids: Any, past: int) -> Any:
            ids = np.asarray(ids)
            length = ids.shape[1]
            batch.n_tokens = rows * length
            for row in range(rows):
                for t in range(length):
                    at = row * length + t
                    batch.token[at] = int(ids[row, t])
                    batch.pos[at] = past + t
                    batch.n_seq_id[at] = 1
                    batch.seq_id[at][0] = row
                    batch.logits[at] = t == length - 1
            assert llama_cpp.llama_decode(state, batch) == 0
            found = []
            for row in range(rows):
                logits = llama_cpp.llama_get_logits_ith(state, row * length + length - 1)
                found.append(np.ctypeslib.as_array(logits, (vocab_size,)).argmax())
            return np.array(found)

        return step

    return reset


def openvino(folder: Path, kind: str, threads: int) -> Reset:
    import numpy as np
    import openvino as ov

    path = folder / f"openvino-{kind}"
    if not (path / "openvino_model.xml").exists():
        from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

        bits, group = (8, -1) if kind == "int8" else (4, 64)
        config = OVWeightQuantizationConfig(bits=bits, group_size=group)
        OVModelForCausalLM.from_pretrained(
            folder / "hf", export=True, quantization_config=config
        ).save_pretrained(path)
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    core = ov.Core()
    model = core.read_model(path / "openvino_model.xml")
    # As its own pipeline does it: the head for the last token only.
    product = model.output("logits").get_node().input_value(0).get_node()
    last = ov.opset13.slice(product.input_value(0), [-1], [2**31 - 1], [1], [1])
    product.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()
    request = core.compile_model(model, "CPU", options).create_infer_request()
    names = {name for port in request.model_inputs for name in port.names}

    def reset(rows: int) -> Step:
        request.reset_state()

        def step(ids: Any, past: int) -> Any:
            ids = np.asarray(ids, np.int64)
            feeds = {
                "input_ids": ids,
                "attention_mask": np.ones((rows, past + ids.shape[1]), np.int64),
                "position_ids": np.tile(np.arange(past, past + ids.shape[1]), (rows, 1)),
                "beam_idx": np.arange(rows, dtype=np.int32),
            }
            found = request.infer({k: v for k, v in feeds.items() if k in names}, share_outputs=True)
            return found[0][:, -1].argmax(axis=1)

        return step

    return reset


def ctranslate2(folder: Path, kind: str, threads: int) -> Reset:
    """It has no step of its own: `generate_batch` runs the whole loop, and is timed so by `run_task`."""
    import ctranslate2 as ct

    class Vocabulary:  # all that its converter asks of a tokenizer
        bos_token = eos_token = unk_token = "t50256"

        def get_vocab(self) -> dict[str, int]:
            return {f"t{i}": i for i in range(50257)}

    class Converter(ct.converters.TransformersConverter):  # type: ignore[misc, name-defined]
        def load_tokenizer(self, *_: Any, **__: Any) -> Vocabulary:
            return Vocabulary()

    path = folder / f"ctranslate2-{kind}"
    if not path.exists():
        Converter(str(folder / "hf")).convert(str(path), quantization=kind)
    generator = ct.Generator(str(path), intra_threads=threads, compute_type=kind)

    def generate(ids: list[list[int]], new: int) -> None:
        tokens = [[f"t{i}" for i in row] for row in ids]
        generator.generate_batch(
            tokens,
            max_length=new,
            min_length=new,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[],
        )

    reset: Any = lambda rows: None  # noqa: E731
    reset.generate = generate
    return reset  # type: ignore[no-any-return]


def onnx_graph(folder: Path) -> Any:
    """GPT-2 as ONNX Runtime's own tools write it, with its fused attention; the head for the last token."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper
    from safetensors.numpy import load_file

    weights = {
        k.removeprefix("transformer."): v for k, v in load_file(folder / "hf" / "model.safetensors").items()
    }
    weights["head"] = weights["wte.weight"].T.copy()
    nodes, inputs, outputs = [], [], []

    def add(op: str, given: list[str], out: str, more: tuple[str, ...] = (), **attributes: Any) -> str:
        domain = "com.microsoft" if op in ("Attention", "FastGelu") else ""
        nodes.append(helper.make_node(op, given, [out, *more], domain=domain, **attributes))
        return out

    def product(x: str, name: str, out: str) -> str:
        return add("Add", [add("MatMul", [x, f"{name}.weight"], f"{out}_"), f"{name}.bias"], out)

    def norm(x: str, name: str, out: str) -> str:
        return add("LayerNormalization", [x, f"{name}.weight", f"{name}.bias"], out, epsilon=1e-5)

    x = add(
        "Add", [add("Gather", ["wte.weight", "ids"], "tok"), add("Gather", ["wpe.weight", "at"], "pos")], "x"
    )
    for i in range(12):
        h = f"h.{i}"
        past = ["batch" if n == 1 else "past" if n == 3 else size for n, size in enumerate((2, 0, 12, 0, 64))]
        inputs.append(helper.make_tensor_value_info(f"past{i}", onnx.TensorProto.FLOAT, past))
        outputs.append(helper.make_tensor_value_info(f"present{i}", onnx.TensorProto.FLOAT, None))
        given = [
            norm(x, f"{h}.ln_1", f"n{i}"),
            f"{h}.attn.c_attn.weight",
            f"{h}.attn.c_attn.bias",
            "",
            f"past{i}",
        ]
        mixed = add("Attention", given, f"a{i}", (f"present{i}",), num_heads=12, unidirectional=1)
        x = add("Add", [x, product(mixed, f"{h}.attn.c_proj", f"p{i}")], f"y{i}")
        wide = add("MatMul", [norm(x, f"{h}.ln_2", f"m{i}"), f"{h}.mlp.c_fc.weight"], f"w{i}")
        wide = add("FastGelu", [wide, f"{h}.mlp.c_fc.bias"], f"g{i}")
        x = add("Add", [x, product(wide, f"{h}.mlp.c_proj", f"q{i}")], f"x{i}")
    weights["last"] = np.array(-1)
    add("MatMul", [norm(add("Gather", [x, "last"], "end", axis=1), "ln_f", "final"), "head"], "logits")
    ids = [
        helper.make_tensor_value_info(n, onnx.TensorProto.INT64, ["batch", "length"]) for n in ("ids", "at")
    ]
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 50257])
    used = {name for node in nodes for name in node.input}
    tensors = [numpy_helper.from_array(v, k) for k, v in weights.items() if k in used]
    graph = helper.make_graph(nodes, "gpt2", [*ids, *inputs], [logits, *outputs], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def onnxruntime(folder: Path, kind: str, threads: int) -> Reset:
    import numpy as np
    import onnxruntime as ort

    path = folder / f"{kind}.onnx"
    if not path.exists():
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        onnx.save(onnx_graph(folder), folder / "f32.onnx")
        quantize_dynamic(
            folder / "f32.onnx", path, per_channel=True, weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [out.name for out in session.get_outputs()]
    value = ort.OrtValue.ortvalue_from_numpy

    def reset(rows: int) -> Step:
        past = [value(np.zeros((2, rows, 12, 0, 64), np.float32)) for _ in names[1:]]

        def step(ids: Any, before: int) -> Any:
            nonlocal past
            ids = np.asarray(ids, np.int64)
            at = np.tile(np.arange(before, before + ids.shape[1]), (rows, 1))
            feeds = {"ids": value(np.ascontiguousarray(ids)), "at": value(at)}
            feeds |= {f"past{i}": one for i, one in enumerate(past)}
            logits, *past = session.run_with_ort_values(names, feeds)
            return logits.numpy().argmax(axis=1)

        return step

    return reset


def transformers(folder: Path, kind: str, threads: int) -> Reset:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder / "hf", dtype=getattr(torch, kind)).eval()

    def reset(rows: int) -> Step:
        cache = None

        def step(ids: Any, past: int) -> Any:
            nonlocal cache
            with torch.inference_mode():
                out = model(torch.as_tensor(ids), past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = out.past_key_values
            return out.logits[:, -1].float().numpy().argmax(axis=1)

        return step

    return reset


CONTESTANTS = {
    "glassgpt": glassgpt, "llama.cpp": llama, "openvino": openvino, "onnxruntime": onnxruntime,
    "ctranslate2": ctranslate2, "transformers": transformers,
}  # fmt: skip


# ---- a worker: one contestant in a process of its own, told on stdin what to run ----


def run_task(reset: Reset, task: str, draw: Any) -> float:
    """Tokens per second; of new tokens, or of the prompt."""
    rows = {"16 texts": 16, "64 texts": 64}.get(task, 1)
    if task == "prompt of 1,023":
        return time_prompt(reset, draw)
    new = NEW if rows == 1 else STEPS_IN_BATCH
    prompts = draw.integers(50257, size=(rows, PROMPT))
    if hasattr(reset, "generate"):
        seconds = []
        for count in (1, new + 1):  # what the prompt and the first token take does not count
            begun = time.perf_counter()
            reset.generate(prompts.tolist(), count)
            seconds.append(time.perf_counter() - begun)
        return rows * new / (seconds[1] - seconds[0])
    step = reset(rows)
    tokens = step(prompts, 0)
    begun = time.perf_counter()
    for i in range(new):
        tokens = step(tokens[:, None], PROMPT + i)
    return rows * new / (time.perf_counter() - begun)


def time_prompt(reset: Reset, draw: Any) -> float:
    ids = draw.integers(50257, size=(1, 1023))
    begun = time.perf_counter()
    if hasattr(reset, "generate"):
        reset.generate(ids.tolist(), 1)
    else:
        step = reset(1)
        begun = time.perf_counter()
        step(ids, 0)
    return 1023 / (time.perf_counter() - begun)


def worker(name: str, folder: Path, threads: int) -> None:
    import numpy as np

    answers = os.dup(1)  # libraries write to stdout, too
    os.dup2(2, 1)
    program, kind = name.split(" ")
    reset = CONTESTANTS[program](folder, kind, threads)
    draw = np.random.default_rng(0)
    run_task(reset, "one text", draw)
    os.write(answers, b"ready\n")
    for line in sys.stdin:
        os.write(answers, f"{run_task(reset, line.strip(), draw)}\n".encode())


class Worker:
    def __init__(self, name: str, python: str, folder: Path, threads: int) -> None:
        command = [python, __file__, "--worker", name, "--folder", str(folder), "--threads", str(threads)]
        self.name = name
        self.errors = open(folder / f"{name.replace(' ', '-')}.log", "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
        )

    def ready(self) -> bool:
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() == "ready":
            return True
        self.errors.seek(0)
        last = [line.strip() for line in self.errors if line.strip()][-1:]
        print(f"left out: {self.name} ({last[0][:150] if last else 'it ended'})")
        return False

    def run(self, task: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return float(answer) if answer.strip() else math.nan

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


# ---- the referee ----


def export(folder: Path) -> None:
    """The weights in the formats of all contestants."""
    import numpy as np

    from glassgpt.config import Config
    from glassgpt.weights import Checkpoint, save_checkpoint

    if (folder / "f32.gguf").exists():
        return
    draw = np.random.default_rng(0)
    tensors = {}
    for name, shape in Config.named("gpt2").shapes().items():
        ones = (
            np.ones(shape, np.float32)
            if "ln_" in name and name.endswith("weight")
            else np.zeros(shape, np.float32)
        )
        tensors[name] = (
            ones if len(shape) == 1 else draw.standard_normal(shape, np.float32) * np.float32(0.02)
        )
    checkpoint = Checkpoint(Config.named("gpt2"), tensors)
    save_checkpoint(checkpoint, folder / "hf")
    save_checkpoint(checkpoint, folder / "f32.gguf", "gguf")


def machine(folder: Path, threads: int) -> dict[str, Any]:
    """What this machine's memory and its products of bytes can do at most, and what a token asks of them."""
    from glassgpt.backends.native.weights import Weights
    from glassgpt.config import Config
    from glassgpt.weights import load_checkpoint

    checkpoint = load_checkpoint(str(folder / "hf"))
    n_bytes = {}
    for name in OURS:
        weights = Weights(checkpoint, dtype=name.split(" ")[1], threads=threads)
        n_bytes[name] = weights.n_bytes
    limits = [weights.machine_limits() for _ in range(3)]
    shape = Config.named("gpt2")
    head, cache = (
        shape.vocab_size * shape.n_embd,
        4 * shape.n_layer * shape.n_embd,
    )  # the latter for each position
    blocks = shape.n_parameters - head - shape.n_positions * shape.n_embd
    length = PROMPT + STEPS_IN_BATCH // 2
    return {
        "bandwidth": statistics.median(one for one, _ in limits),
        "int8_peak": statistics.median(one for _, one in limits),
        "bytes": n_bytes,
        "operations": {
            "prompt of 1,023": 2 * blocks + cache * 512,
            **dict.fromkeys(("16 texts", "64 texts"), 2 * (blocks + head) + cache * length),
        },
    }


def race(workers: list[Worker], rounds: int, tasks: list[str]) -> dict[str, dict[str, list[float]]]:
    speeds: dict[str, dict[str, list[float]]] = {task: {w.name: [] for w in workers} for task in tasks}
    for turn in range(rounds):
        for task in tasks:
            for one in workers[turn % len(workers) :] + workers[: turn % len(workers)]:
                speeds[task][one.name].append(one.run(task))
                print(
                    f"{turn} {task}: {one.name} {speeds[task][one.name][-1]:,.0f}",
                    file=sys.stderr,
                    flush=True,
                )
    return speeds


def report(speeds: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Medians, ratios and spreads; printed as a Markdown table."""
    result: dict[str, Any] = {}
    for task, found in speeds.items():
        for name, values in found.items():
            row: dict[str, Any] = {"tokens_per_s": statistics.median(values), "all": values}
            ours = OURS[1] if name.endswith(("Q4_0", "int4")) and task == "one text" else OURS[0]
            if name not in OURS and ours in found:
                ratios = sorted(a / b for a, b in zip(found[ours], values, strict=True))
                row |= {
                    "ratio": statistics.median(ratios),
                    "lowest": ratios[0],
                    "highest": ratios[-1],
                    "of": ours,
                }
            result.setdefault(task, {})[name] = row
    print("\n| | " + " | ".join(result) + " |\n|" + " --- |" * (len(result) + 1))
    for name in next(iter(result.values()), {}):
        print(
            f"| {f'**{name}**' if name in OURS else name} | "
            + " | ".join(cell(result[t][name]) for t in result)
            + " |"
        )
    return result


def cell(row: dict[str, Any]) -> str:
    speed = f"{row['tokens_per_s']:,.0f}"
    return (
        f"{speed} ({row['ratio']:.2f}: {row['lowest']:.2f} to {row['highest']:.2f})"
        if "ratio" in row
        else speed
    )


def report_limits(result: dict[str, Any], limits: dict[str, Any]) -> dict[str, float]:
    """What fraction of the memory's speed, or of the products of bytes, a task reaches."""
    bandwidth, peak = limits["bandwidth"], limits["int8_peak"]
    print(f"\nmemory is read at {bandwidth / 1e9:.1f} GB/s; int8 reaches {peak / 1e12:.2f} Top/s at most")
    fractions = {}
    for task, found in result.items():
        for name in set(OURS) & set(found):
            speed = found[name]["tokens_per_s"]
            if task == "one text":
                part, what = speed * limits["bytes"][name] / bandwidth, "of the memory's speed"
            else:
                part, what = speed * limits["operations"][task] / peak, "of the int8 peak"
            fractions[f"{task}, {name}"] = part
            print(f"{task + ', ' + name:<34} {part:.0%} {what}")
    return fractions


# ---- perplexity of int4 beside Q4_0 ----


def perplexity(
    file: Path, folder: Path, python: str, windows: int = 128, length: int = 512
) -> dict[str, float]:
    """Of the shipped model on a text, in every precision of ours and in llama.cpp's Q8_0 and Q4_0."""
    import numpy as np

    from glassgpt.backends.native.backend import NativeBackend
    from glassgpt.backends.protocol import ScoreRequest
    from glassgpt.weights import load_checkpoint, save_checkpoint

    checkpoint = load_checkpoint("default")
    assert checkpoint.tokenizer is not None
    ids = np.array(checkpoint.tokenizer.encode(file.read_text("utf-8")), np.int64)[: windows * length]
    found = {}
    for dtype in ("float32", "int8", "int4"):
        backend = NativeBackend.load(checkpoint, dtype=dtype)
        groups = [[ScoreRequest(ids[i : i + length], 1)] for i in range(0, len(ids), length)]
        logprobs = [one.logprobs for _, scores in backend.score(groups) for one in scores]
        found[f"glassgpt {dtype}"] = float(np.exp(-np.concatenate(logprobs).mean()))
    small = folder / "shipped"
    small.mkdir(exist_ok=True)
    if not (small / "f32.gguf").exists():
        save_checkpoint(checkpoint, small / "f32.gguf", "gguf")
    np.save(small / "ids.npy", ids.reshape(-1, length))
    for kind in ("Q8_0", "Q4_0"):
        command = [python, __file__, "--llama-perplexity", kind, "--folder", str(small)]
        out = subprocess.run(command, capture_output=True, text=True)
        found[f"llama.cpp {kind}"] = float(out.stdout.split()[-1]) if out.returncode == 0 else math.nan
    for name, value in found.items():
        print(f"{name:<20} {value:8.3f}  {100 * (value / found['glassgpt float32'] - 1):+.2f} %")
    return found


def llama_perplexity(folder: Path, kind: str) -> None:
    import llama_cpp
    import numpy as np

    llama(folder, kind, 2)
    model = llama_cpp.Llama(
        str(folder / f"{kind}.gguf"), n_ctx=1024, logits_all=True, verbose=False, n_threads=2
    )
    total, count = 0.0, 0
    for window in np.load(folder / "ids.npy"):
        model.reset()
        model.eval(window.tolist())
        logits = np.array(model.scores[: len(window) - 1], np.float64)
        norm = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
        total += (norm - logits[np.arange(len(window) - 1), window[1:]]).sum()
        count += len(window) - 1
    print(math.exp(total / count))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--only", nargs="*", default=[*OURS, *PEERS], help="contestants")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "glassgpt-cpu-peers")
    parser.add_argument("--perplexity", type=Path, metavar="TEXT")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--llama-perplexity", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.worker:
        return worker(args.worker, args.folder, args.threads)
    if args.llama_perplexity:
        return llama_perplexity(args.folder, args.llama_perplexity)
    if args.perplexity:
        print(json.dumps(perplexity(args.perplexity, args.folder, args.peers)))
        return None
    export(args.folder)
    workers = []
    for name in args.only:  # one after the other: loading and converting use all cores
        one = Worker(name, sys.executable if name in OURS else args.peers, args.folder, args.threads)
        if one.ready():
            workers.append(one)
    try:
        speeds = race(workers, args.rounds, args.tasks)
    finally:
        for one in workers:
            one.close()
    result, limits = report(speeds), machine(args.folder, args.threads)
    fractions = report_limits(result, limits)
    print(json.dumps({"threads": args.threads, **limits, "fractions": fractions, "tasks": result}))
    return None


if __name__ == "__main__":
    main()
