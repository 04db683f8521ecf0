"""`glassgpt verify MODEL`: does this machine compute what it should?"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.parse import flag

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.inspect.verify import Check


def command(
    model: Annotated[
        Positional[str], flag("a name (default, gpt2, owner/name), a folder or a file", "[MODEL]")
    ] = "default",
    *,
    device: Annotated[
        tuple[str, ...], flag("only this device; may be repeated", "NAME", default="all there are")
    ] = (),
    dtype: Annotated[
        tuple[Literal["float32", "bfloat16", "float16"], ...],
        flag("only this; may be repeated", default="all three"),
    ] = (),
    json: Annotated[bool, flag("one JSON object", default="")] = False,
) -> int:
    """Run a model in every way this machine offers (each device and dtype, with and without cache, padded,
    batched, through the engine) and compare each, layer by layer, with the plain float32 forward pass on the
    CPU. What may differ is measured: 8 times the rounding error of that pass, scaled to the dtype. Exit code
    1 if anything differs by more."""
    from glassgpt.inspect import verify
    from glassgpt.model.backend import choose_device
    from glassgpt.weights import load_checkpoint
    from glassgpt.weights.hub import KNOWN

    for name in device:
        choose_device(name)
    names = list(device) if device else verify.devices()
    dtypes = list(dtype) if dtype else list(verify.DTYPES)
    checkpoint = load_checkpoint(model)
    checks: list[Check] = []
    with terminal.progress(f"verifying {model}", len(names) * len(dtypes) * verify.CHECKS) as advance:
        for check in verify.verify(checkpoint, names=names, dtypes=dtypes):
            checks.append(check)
            advance(1)
        if model in ("gpt2", KNOWN["gpt2"]) and verify.is_published_small(checkpoint):
            checks.append(verify.check_known_answers(checkpoint))
    good = all(check.ok for check in checks)
    if json:
        print(
            jsonlib.dumps(
                {"model": model, "ok": good, "checks": [dataclasses.asdict(check) for check in checks]}
            )
        )
    else:
        terminal.show(verdicts(checks))
        failed = sum(not check.ok for check in checks)
        terminal.note(
            f"{model}: all {len(checks)} checks agree with the reference."
            if good
            else f"{model}: {failed} of {len(checks)} checks FAIL. Please report this table."
        )
    return 0 if good else 1


def verdicts(checks: list[Check]) -> Table:
    """One row for each way; the place where it strayed furthest, in proportion to what is allowed there."""
    from rich.text import Text

    roomy = terminal.console().width >= 110
    made = terminal.table(
        "device", "dtype", "way", ">deviation", ">allowed", *(["where"] if roomy else []), ">same token", ""
    )
    yes, no = ("✓", "✗") if terminal.speaks_unicode(sys.stdout) else ("", "")
    before = ("", "")
    for check in checks:
        now = (check.device, check.dtype)
        ran = check.deviation is not None and check.allowed is not None
        cells = [
            check.device if check.device != before[0] else "",
            check.dtype if now != before else "",
            check.way,
            f"{check.deviation:.1e}" if ran else "",
            f"{check.allowed:.1e}" if ran else "",
        ]
        place: list[Text | str] = [Text(check.place, style="quiet")] if roomy else []
        same = "" if check.n_tokens is None else f"{check.same_tokens}/{check.n_tokens}"
        verdict = (
            Text(f"{yes} ok".strip(), style="good") if check.ok else Text(f"{no} FAIL".strip(), style="bad")
        )
        made.add_row(*cells, *place, same, verdict if ran else Text(check.note, style="quiet"))
        if not check.ok and not roomy:
            made.add_row("", "", Text(f"at {check.place}", style="bad"), "", "", "", "")
        before = now
    return made
