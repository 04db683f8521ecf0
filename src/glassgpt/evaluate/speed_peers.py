"""Other programs with the same weights on the same workload, for `glassgpt bench`.

benchmarks/cpu_peers.py has more of them, quantized by their own tools.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassgpt.errors import UserError

if TYPE_CHECKING:
    from glassgpt.evaluate.speed import Workload
    from glassgpt.gpt import GPT

Ways = dict[str, Callable[[], int]]  # each returns the number of tokens it wrote or read


def transformers_ways(gpt: GPT, load: Workload) -> Ways:
    """In float32."""
    require("transformers", "transformers", "torch")
    import torch
    from transformers import GPT2LMHeadModel

    with tempfile.TemporaryDirectory() as folder:
        export(gpt, Path(folder) / "model", "hf", "float32")
        model: Any = GPT2LMHeadModel.from_pretrained(Path(folder) / "model")  # in evaluation mode
    texts = torch.tensor(load.texts)

    def generate(count: int) -> int:
        ids = torch.tensor(load.prompts(count))
        ids = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=load.new,
            max_new_tokens=load.new, pad_token_id=0,
        )  # fmt: skip
        return int(ids[:, load.start :].numel())

    def read() -> int:
        with torch.inference_mode():
            model(texts[:1])
        return int(texts.shape[1])

    single, batch, prompt = load.names
    return {single: lambda: generate(1), batch: lambda: generate(len(load.texts)), prompt: read}


def llama_cpp_ways(gpt: GPT, load: Workload) -> Ways:
    """In Q8_0, its int8, with as many threads, as llama-cpp-python runs it: one text at a time."""
    require("llama.cpp", "llama_cpp")
    from llama_cpp import Llama

    threads = getattr(getattr(gpt.backend, "weights", None), "threads", os.cpu_count())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        export(gpt, file, "gguf", "q8_0")
        context = gpt.backend.context
        model: Any = Llama(
            str(file), n_ctx=context, n_batch=context, n_threads=threads, n_threads_batch=threads,
            use_mmap=False, verbose=False,
        )  # fmt: skip

    def write() -> int:
        model.reset()
        model.eval(load.prompts(1)[0])
        for _ in range(load.new - 1):
            model.eval([model.sample(temp=0)])
        model.sample(temp=0)
        return load.new

    def read() -> int:
        model.reset()
        model.eval(load.texts[0])
        model.sample(temp=0)
        return len(load.texts[0])

    single, _, prompt = load.names
    return {single: write, prompt: read}


def export(gpt: GPT, path: Path, format: str, dtype: str) -> None:
    from glassgpt.weights import load_checkpoint, save_checkpoint

    save_checkpoint(load_checkpoint(gpt.name), path, format, dtype)


def require(peer: str, *modules: str) -> None:
    if any(find_spec(module) is None for module in modules):
        packages = " ".join({"llama_cpp": "llama-cpp-python"}.get(module, module) for module in modules)
        raise UserError(f"comparing with {peer} needs it: pip install {packages}")


PEERS = {"transformers": transformers_ways, "llama.cpp": llama_cpp_ways}
