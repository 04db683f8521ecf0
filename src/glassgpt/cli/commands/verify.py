"""`glassgpt verify MODEL`: does this machine compute what it should? `verify SHARDS`: is data as prepared?"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from glassgpt.cli import terminal
from glassgpt.cli.parse import flag

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.inspect.verify import Check


def command(
    model: Annotated[
        Positional[str],
        flag(
            "a name (default, tiny, gpt2, owner/name), a folder or a file; or a folder made by prepare",
            "[MODEL]",
        ),
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
    CPU. What may differ is measured: 8 times the rounding error of the plain way in that dtype. Exit code 1
    if anything differs by more. Of a folder made by prepare, compare each token file with its stored hash."""
    from glassgpt.train.data.shards import INDEX

    if (Path(model).expanduser() / INDEX).is_file():
        return verify_shards(model, json)
    from glassgpt.inspect import verify
    from glassgpt.model.torch_backend import choose_device
    from glassgpt.weights import load_checkpoint
    from glassgpt.weights.hub import KNOWN

    for name in device:
        choose_device(name)
    names = list(device) if device else verify.devices()
    dtypes = list(dtype) if dtype else list(verify.DTYPES)
    checkpoint = load_checkpoint(model)
    checks: list[Check] = []
    with terminal.progress(f"verifying {model}", len(names) * len(dtypes) * len(verify.CHECKS)) as advance:
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
        terminal.note(summary(model, checks))
    return 0 if good else 1


def verify_shards(folder: str, json: bool) -> int:
    from glassgpt.train.data.shards import check_hashes

    found = list(check_hashes(Path(folder).expanduser(), terminal.progress))
    wrong = [difference for _, difference in found if difference]
    if json:
        checks = [{"file": file.name, "ok": not difference, "note": difference} for file, difference in found]
        print(jsonlib.dumps({"data": folder, "ok": not wrong, "checks": checks}))
    else:
        for difference in wrong:
            print(difference)
        terminal.note(
            f"{folder}: {len(wrong)} of {len(found)} token files are NOT as they were prepared."
            if wrong
            else f"{folder}: all {len(found)} token files are as they were prepared."
        )
    return 1 if wrong else 0


def verdicts(checks: list[Check]) -> Table:
    """One row for each way; the place where it strayed furthest, in proportion to what is allowed there."""
    from rich.text import Text

    roomy = terminal.console().width >= 106
    made = terminal.table(
        "device", "dtype", "way", ">deviation", ">allowed", "where", *([">same token"] if roomy else []), ""
    )
    yes, no = ("✓ ok", "✗ FAIL") if terminal.speaks_unicode(sys.stdout) else ("ok", "FAIL")
    before = ("", "")
    for check in checks:
        now = (check.device, check.dtype)
        ran = check.deviation is not None and check.allowed is not None
        cells: list[Text | str] = [
            check.device if check.device != before[0] else "",
            check.dtype if now != before else "",
            check.way,
            f"{check.deviation:.1e}" if ran else "",
            f"{check.allowed:.1e}" if ran else "",
            Text(where(check) if roomy else brief(where(check)), style="quiet"),
        ]
        if roomy:
            cells.append("" if check.n_tokens is None else f"{check.same_tokens}/{check.n_tokens}")
        verdict = Text(yes, style="good") if check.ok else Text(no, style="bad")
        made.add_row(*cells, verdict if ran or not check.ok else Text(check.note, style="quiet"))
        before = now
    return made


def where(check: Check) -> str:
    """The place, or for want of one why there is none."""
    return check.note if not check.ok and check.note else check.place


def brief(place: str) -> str:
    """`h.3 @27` for `h.3.resid_post, position 27`, where there is no room."""
    return place.replace(".resid_post", "").replace(", position ", " @")


def summary(model: str, checks: list[Check]) -> str:
    failed = [check for check in checks if not check.ok]
    ran = [check for check in checks if check.deviation is not None and check.allowed is not None]
    verdict = f"all {len(checks)} checks agree with the reference"
    if failed:
        verdict = f"{len(failed)} of {len(checks)} checks FAIL"
    if not ran:
        return f"{model}: {verdict}."
    worst = max(ran, key=share)
    return (
        f"{model}: {verdict}; furthest off is {worst.device} {worst.dtype}, {worst.way}: "
        f"{share(worst):.2g} of what is allowed, at {worst.place}."
    )


def share(check: Check) -> float:
    assert check.deviation is not None
    assert check.allowed is not None
    return check.deviation / check.allowed
