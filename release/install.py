"""Install the wheels of a folder into an environment of its own and use them there: `python
release/install.py dist` (`make test-wheels`). No compiler is needed. With --offline the folder has the wheels
of the dependencies as well, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOCK = Path(__file__).resolve().parents[1] / "requirements" / "light.lock"
TEXT = "The old house stood at the end of the lane, and"


def install(wheels: Path, environment: Path, *, offline: bool) -> Path:
    """The folder with the commands of a new environment that has glassgpt and what its server needs."""
    run(sys.executable, "-m", "venv", environment)
    commands = environment / ("Scripts" if os.name == "nt" else "bin")
    pip = [commands / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    local = ["--no-index", "--find-links", wheels]
    if offline:
        run(*pip, *local, "glassgpt[serve]")
    else:
        run(*pip, "--no-deps", "--require-hashes", "-r", LOCK)
        run(*pip, *local, "glassgpt")
    return commands


def use(commands: Path, folder: Path) -> None:
    """What a newcomer types first. `folder` is not the checkout, so that only what was installed is found."""
    glassgpt = commands / "glassgpt"
    report = json.loads(run(glassgpt, "doctor", "--json", folder=folder))
    if report["problems"] or report["engine"]["kernels"] in (None, "portable"):
        raise SystemExit(f"glassgpt doctor: {report['problems']}, engine: {report['engine']}")
    print(f"{report['system']}, Python {report['python'].split()[0]}: {report['engine']['kernels']} kernels")
    text = run(glassgpt, "generate", TEXT, "--seed", "1", "--max-new-tokens", "60", folder=folder, show=True)
    if not text.startswith(TEXT) or len(text) < len(TEXT) + 60:
        raise SystemExit(f"generate wrote {text!r}")
    guesses = json.loads(run(glassgpt, "next", TEXT, "-k", "5", "--json", folder=folder))
    if len(guesses["next"]) != 5:
        raise SystemExit(f"next: {guesses}")
    run(glassgpt, "tokens", TEXT, "--merges", folder=folder)
    print("doctor, generate, next and tokens work")


def run(*command: object, folder: Path | None = None, show: bool = False) -> str:
    """What a command wrote to stdout; its stderr, with the speed, is shown if asked for. Ends with it if it
    fails."""
    environment = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command[:4]))} failed:\n{done.stdout}{done.stderr}")
    if show:
        print(done.stdout + done.stderr, end="")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", type=Path, help="the folder with the wheels")
    parser.add_argument("--offline", action="store_true", help="it has those of the dependencies, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        commands = install(args.wheels.resolve(), Path(scratch) / "venv", offline=args.offline)
        use(commands, Path(scratch))


if __name__ == "__main__":
    main()
