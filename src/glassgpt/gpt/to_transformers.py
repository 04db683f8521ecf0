"""`gpt.to_transformers()`: the same model as Hugging Face's GPT2LMHeadModel, without a file between."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from glassgpt.errors import UserError
from glassgpt.weights.checkpoint import check_causal_attention
from glassgpt.weights.huggingface import write_config

if TYPE_CHECKING:
    from glassgpt.gpt.gpt import GPT
    from glassgpt.model import GPT2


def to_transformers(gpt: GPT) -> tuple[Any, Any]:
    """See `GPT.to_transformers`."""
    check_causal_attention(gpt.config, "transformers")
    model = gpt.torch_model
    try:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    except ModuleNotFoundError:
        raise UserError("to_transformers() needs transformers. Type: pip install transformers") from None
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_config(gpt.config, folder, "float32")
        tokenizer = None
        if gpt.tokenizer is not None:
            gpt.tokenizer.save(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        models: Any = AutoModelForCausalLM  # its methods have no types
        theirs = models.from_config(AutoConfig.from_pretrained(folder))
    weight = model.wte.weight
    theirs = theirs.to(weight.device, weight.dtype).eval()
    theirs.load_state_dict(state_of(model))
    theirs.config.name_or_path = gpt.name
    return theirs, tokenizer


def state_of(model: GPT2) -> dict[str, Any]:
    """Its tensors by the names of transformers; an adapter (LoRA) is added to its matrix."""
    from glassgpt.inspect.torch_forward import weight_and_bias

    config = model.config
    state: dict[str, Any] = {}
    for name in config.shapes():
        module = name.removesuffix(".weight").removesuffix(".bias")
        if module.endswith((".c_attn", ".c_proj", ".c_fc")):
            width = config.d_mlp if module.endswith("mlp.c_proj") else config.n_embd
            weight, bias = weight_and_bias(model.get_submodule(module), width)
            values = weight if name.endswith(".weight") else bias
        else:
            values = model.get_parameter(name)
        state[name if name.startswith("lm_head.") else f"transformer.{name}"] = values.detach()
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["transformer.wte.weight"]
    return state
