"""schemathesis over the OpenAPI document, against a server that was started by its command.

    python -m tests.serve.attack --examples 1100      # more than 5,000 cases, twenty minutes on a busy core

Every answer is checked against the document: no 5xx, only documented statuses, content types and bodies,
which for an error is its one shape. A finding is printed as a command line that repeats it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.conftest import SHIPPED
from tests.serve.conftest import ServerProcess

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)


def attack(root: str, examples: int, *more: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with so many random cases for each endpoint."""
    program = Path(sys.executable).with_name("st")
    words = [
        str(program), "run", f"{root}/openapi.json", "--max-examples", str(examples), "--continue-on-failure",
        "--no-color", "--suppress-health-check", "all", "--request-timeout", "600",
        "--checks", ",".join(CHECKS), *more,
    ]  # fmt: skip
    return subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1100, help="random cases of each endpoint")
    args = parser.parse_args()
    server = ServerProcess("--model", SHIPPED)
    try:
        ended = attack(server.root, args.examples, "--phases", "coverage,fuzzing", "--workers", "2")
    finally:
        server.stop()
    print(ended.stdout)
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
