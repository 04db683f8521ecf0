"""The backends, devices and dtypes of this machine in which a model can be checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glassgpt.backends.choose import BACKENDS, is_torch_installed
from glassgpt.config import Config
from glassgpt.errors import NEEDS_TORCH, SettingError

EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10, "int8": 2.0**-7, "int4": 2.0**-3}
INTEGERS = ("int8", "int4")
# The dtypes that each backend is checked in.
DTYPES = {
    "native": tuple(EPS),
    "torch": tuple(name for name in EPS if name not in INTEGERS),
    "numpy": ("float32",),
}
Plan = tuple[str, str, str]  # backend, device, dtype


def devices() -> list[str]:
    """Every device of this machine, the CPU first."""
    names = ["cpu"]
    if not is_torch_installed():
        return names
    import torch

    if torch.cuda.is_available():
        names += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def backends() -> list[str]:
    """The backends that are installed, torch first: its checks look into every layer."""
    from glassgpt.backends.native import is_available

    installed = {"torch": is_torch_installed(), "native": is_available()}
    return [name for name in sorted(BACKENDS, key=lambda name: name != "torch") if installed.get(name, True)]


def check_devices(names: Sequence[str]) -> None:
    """Refuse names of devices that are not on this machine."""
    if is_torch_installed():
        from glassgpt.backends.torch.backend import choose_device

        for name in names:
            choose_device(name)
        return
    for name in names:
        if name != "cpu":
            raise SettingError(f"device {name!r} {NEEDS_TORCH}")


def plan(wanted: Sequence[str], names: Sequence[str], dtypes: Sequence[str]) -> Iterator[Plan]:
    """What there is to check of these backends, devices and dtypes. All but torch run on the CPU only."""
    for backend in wanted:
        for device in names:
            for dtype in dtypes:
                if (backend == "torch" or device == "cpu") and dtype in DTYPES[backend]:
                    yield backend, device, dtype


def computable(config: Config, planned: Sequence[Plan]) -> Sequence[Plan]:
    """Without backends that have only the published attention, where the model's is another."""
    return (
        planned if config.attention == Config.attention else [each for each in planned if each[0] == "torch"]
    )
