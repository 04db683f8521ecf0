"""`glassgpt verify MODEL`: are the results on this machine right? `verify SHARDS`: is the data intact?"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from glassgpt.cli import progress_bar, terminal
from glassgpt.cli.parser.options import Flag, Positional
from glassgpt.errors import SettingError

if TYPE_CHECKING:
    from rich.table import Table

    from glassgpt.verify.checks import Check


def command(
    model: Annotated[
        Positional[str],
        Flag(
            "a name (default, tiny, gpt2, owner/name), a folder or a file; or a folder of prepared data",
            "[MODEL]",
        ),
    ] = "default",
    *,
    device: Annotated[
        tuple[str, ...], Flag("check only this device; may be repeated", "NAME", default="all available")
    ] = (),
    dtype: Annotated[
        tuple[Literal["float32", "bfloat16", "float16", "int8", "int4"], ...],
        Flag("check only this dtype; may be repeated; int8 and int4 are the native engine's", default="all"),
    ] = (),
    backend: Annotated[
        tuple[str, ...], Flag("check only this backend; may be repeated", "NAME", default="all installed")
    ] = (),
    json: Annotated[bool, Flag("print a JSON object")] = False,
) -> int:
    """Run a model in every configuration this machine offers (each backend, device and dtype, with and
    without the KV cache, padded, batched, through the engine) and compare every layer with a plain float32
    forward pass on the CPU. The tolerance is 8 times the measured rounding error of that dtype; exit code 1
    if any layer exceeds it. For prepared data, compare each token file with its stored hash."""
    from glassgpt.train.data.shards import INDEX

    if (Path(model).expanduser() / INDEX).is_file():
        return verify_shards(model, json)
    from glassgpt.backends.choose import check_backend
    from glassgpt.verify import plan
    from glassgpt.verify.checks import check_known_answers, is_published_small, verify
    from glassgpt.verify.modes import checks_of
    from glassgpt.weights import load_checkpoint
    from glassgpt.weights.hub import KNOWN

    for name in backend:
        check_backend(name)
    plan.check_devices(device)
    names = list(device) if device else plan.devices()
    dtypes = list(dtype) if dtype else list(plan.EPS)
    backends = list(backend) if backend else plan.backends()
    planned = list(plan.plan(backends, names, dtypes))
    if not planned:
        raise SettingError(
            f"{'/'.join(backends)} does not run in {'/'.join(dtypes)} on {'/'.join(names)}. "
            "Leave out --dtype or --device."
        )
    checkpoint = load_checkpoint(model, progress=progress_bar.progress)
    planned = planned if backend else list(plan.computable(checkpoint.config, planned))
    checks: list[Check] = []
    total = sum(len(checks_of(each[0])) for each in planned)
    with progress_bar.progress(f"verifying {model}", total) as advance:
        for check in verify(checkpoint, planned):
            checks.append(check)
            advance(1)
        if model in ("gpt2", KNOWN["gpt2"]) and is_published_small(checkpoint):
            checks.append(check_known_answers(checkpoint))
    ok = all(check.ok for check in checks)
    if json:
        results = [dataclasses.asdict(check) for check in checks]
        print(jsonlib.dumps({"model": model, "ok": ok, "checks": results}))
    else:
        terminal.show(make_table(checks))
        terminal.note(summarize(model, checks))
    return 0 if ok else 1


def verify_shards(folder: str, json: bool) -> int:
    from glassgpt.train.data.shards import check_hashes

    results = list(check_hashes(Path(folder).expanduser(), progress_bar.progress))
    wrong = [problem for _, problem in results if problem]
    if json:
        checks = [{"file": file.name, "ok": not problem, "note": problem} for file, problem in results]
        print(jsonlib.dumps({"data": folder, "ok": not wrong, "checks": checks}))
    else:
        for problem in wrong:
            print(problem)
        terminal.note(
            f"{folder}: {len(wrong)} of {len(results)} token files have CHANGED since they were prepared."
            if wrong
            else f"{folder}: all {len(results)} token files are unchanged."
        )
    return 1 if wrong else 0


def make_table(checks: list[Check]) -> Table:
    """A row for each check: its largest deviation in proportion to the tolerance, and where that is."""
    from rich.text import Text

    wide = terminal.console().width >= 106
    table = terminal.table(
        "device", "dtype", "mode", ">deviation", ">tolerance", "where", *([">same token"] if wide else []), ""
    )
    ok, fail = ("✓ ok", "✗ FAIL") if terminal.supports_unicode(sys.stdout) else ("ok", "FAIL")
    previous = ("", "")
    for check in checks:
        place = check.device if check.backend == "torch" else f"{check.device}, {check.backend}"
        current = (place, check.dtype)
        ran = check.deviation is not None and check.tolerance is not None
        cells: list[Text | str] = [
            place if place != previous[0] else "",
            check.dtype if current != previous else "",
            check.mode,
            f"{check.deviation:.1e}" if ran else "",
            f"{check.tolerance:.1e}" if ran else "",
            Text(locate(check) if wide else abbreviate(locate(check)), style="quiet"),
        ]
        if wide:
            cells.append("" if check.n_tokens is None else f"{check.same_tokens}/{check.n_tokens}")
        verdict = Text(ok, style="good") if check.ok else Text(fail, style="bad")
        table.add_row(*cells, verdict if ran or not check.ok else Text(check.note, style="quiet"))
        previous = current
    return table


def locate(check: Check) -> str:
    """Where the largest deviation is, or why the check failed without one."""
    return check.note if not check.ok and check.note else check.place


def abbreviate(place: str) -> str:
    """`h.3 @27` for `h.3.resid_post, position 27` in a narrow table."""
    return place.replace(".resid_post", "").replace(", position ", " @")


def summarize(model: str, checks: list[Check]) -> str:
    failed = [check for check in checks if not check.ok]
    ran = [check for check in checks if check.deviation is not None and check.tolerance is not None]
    verdict = f"all {len(checks)} checks agree with the reference"
    if failed:
        verdict = f"{len(failed)} of {len(checks)} checks FAIL"
    if not ran:
        return f"{model}: {verdict}."
    worst = max(ran, key=fraction_of_tolerance)
    return (
        f"{model}: {verdict}; the largest deviation is {fraction_of_tolerance(worst):.2g} of the tolerance "
        f"({worst.backend}, {worst.device} {worst.dtype}, {worst.mode}, at {worst.place})."
    )


def fraction_of_tolerance(check: Check) -> float:
    assert check.deviation is not None
    assert check.tolerance is not None
    return check.deviation / check.tolerance
