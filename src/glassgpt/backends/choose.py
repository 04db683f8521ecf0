"""Which backend computes: the native engine on a CPU, torch where there may be a GPU, numpy otherwise."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from glassgpt.backends.protocol import Backend, StoredModel
from glassgpt.config import Config
from glassgpt.errors import NEEDS_TORCH, SettingError, UserError

# Name -> "module:class", whose `load` makes a backend of a checkpoint. Imported only when it is asked for.
BACKENDS = {
    "native": "glassgpt.backends.native.backend:NativeBackend",
    "torch": "glassgpt.backends.torch.backend:TorchBackend",
    "numpy": "glassgpt.backends.numpy:NumpyBackend",
}


def check_backend(name: str) -> None:
    if name not in BACKENDS:
        raise SettingError(
            f"backend {name!r} is not one of {', '.join(BACKENDS)}. Leave it out to use the best available."
        )


def default_backend(config: Config, device: str | None = None, dtype: str | None = None) -> str:
    """The best backend of this machine for such a model: native on CPUs, torch where a GPU may be."""
    if not (device is None and may_have_gpu() and is_torch_installed()) and can_run_natively(
        config, device, dtype
    ):
        return "native"
    return "torch" if is_torch_installed() else "numpy"


def note_fallback(name: str, config: Config, device: str | None = None, dtype: str | None = None) -> None:
    """Warn once if another backend has to replace the native engine, and say what to type."""
    if name == "native" or (name == "torch" and device is None and may_have_gpu()):
        return
    native = import_module("glassgpt.backends.native")
    if native.why_not(config, device, dtype) is None and (why := native.why_unavailable()) is not None:
        warnings.warn(
            f"{why}. Until then {name} computes: slower, and a seed may give another text.", stacklevel=2
        )


def can_run_natively(config: Config, device: str | None = None, dtype: str | None = None) -> bool:
    """Whether the native engine was built here, and has all that the model and the settings ask for."""
    native = import_module("glassgpt.backends.native")
    return native.is_available() and native.why_not(config, device, dtype) is None


def may_have_gpu() -> bool:
    """Whether torch might find another device than the CPU: a driver is there. Asking it takes a second."""
    if sys.platform == "darwin":
        return platform.machine() == "arm64"
    if sys.platform == "win32":
        return (Path(os.environ.get("SYSTEMROOT", r"C:\Windows")) / "System32" / "nvcuda.dll").exists()
    return any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")))


def is_torch_installed() -> bool:
    """Without importing it, which takes a second."""
    try:
        return find_spec("torch") is not None
    except (ModuleNotFoundError, ValueError):
        return False


def load_backend(
    checkpoint: StoredModel,
    name: str | None = None,
    *,
    device: str | None = None,
    dtype: str | None = None,
    cache_dtype: str | None = None,
) -> Backend:
    """The backend of that name with a checkpoint's weights; `cache_dtype` is that of the KV cache."""
    if name is None:
        name = default_backend(checkpoint.config, device, dtype)
        note_fallback(name, checkpoint.config, device, dtype)
    check_backend(name)
    if cache_dtype is not None and name != "native":
        raise SettingError(
            f"cache_dtype {cache_dtype} is for the native backend; this model runs on {name}. Leave it out."
        )
    options = {} if cache_dtype is None else {"cache_dtype": cache_dtype}
    module, cls = BACKENDS[name].split(":")
    try:
        backend = getattr(import_module(module), cls)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "glassgpt":
            raise
        if error.name.split(".")[0] == "torch":
            raise UserError(f"the torch backend {NEEDS_TORCH}") from None
        raise UserError(
            f"running a model needs {error.name}. Install it with: pip install 'glassgpt[{name}]'"
        ) from None
    loaded: Backend = backend.load(checkpoint, device=device, dtype=dtype, **options)
    return loaded


def load_like(backend: Backend, checkpoint: StoredModel) -> Backend:
    """A checkpoint's weights behind the same kind of backend, on the same device and in the same dtype."""
    options = {name: getattr(backend, name, None) for name in ("device", "dtype")}
    named = {
        name: None if value is None else str(value).removeprefix("torch.") for name, value in options.items()
    }
    loaded: Backend = type(backend).load(checkpoint, **named)  # type: ignore[attr-defined]
    return loaded
