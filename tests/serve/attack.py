"""schemathesis over the OpenAPI document, and mutated bodies, against a server started by its command.

    python -m tests.serve.attack --examples 1100      # more than 5,000 cases, twenty minutes on a busy core
    python -m tests.serve.attack --examples 0 --mutations 5000

Every answer is checked against the document: no 5xx, only documented statuses, content types and bodies,
which for an error is its one shape. A finding is printed as a command line that repeats it. The bodies of
`--mutations` are valid ones with bytes changed, so that most are not even JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.conftest import SHIPPED
from tests.serve.conftest import PATIENCE, ServerProcess

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)

BODIES = [
    {"prompt": "The old house", "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True},
    {"prompt": [[1, 2, 3], [4]], "max_tokens": 2, "n": 2, "best_of": 3, "seed": 7, "stop": ["\n", "."]},
    {"prompt": ["A", "Bé 🤖"], "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": "A", "max_tokens": 4, "logit_bias": {"5": 1.5}, "top_p": 0.5, "top_k": 3, "min_p": 0.1},
    {"prompt": "A", "max_tokens": 9, "guided_json": {"type": "object", "properties": {"a": {"enum": [1]}}}},
    {"prompt": "A", "max_tokens": 9, "response_format": {"type": "json_object"}, "user": "me"},
    {"prompt": "A", "max_tokens": 9, "guided_regex": "(a|b)*c{2,3}", "return_token_ids": True},
]
NASTY = [
    b"NaN", b"-Infinity", b"1e999", b"-0.0", b"1" + b"0" * 400, b"null", b"true", b"[]", b"{}", b"[[]]",
    b'"\\ud800"', b'"\\u0000"', b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"[" * 10_000, b'{"a":' * 10_000,
    b"\xef\xbb\xbf", b'"' + b"A" * 100_000 + b'"', b"\\", b'"', b"}", b"]", b",", b":", b"9" * 20, b"-1",
]  # fmt: skip


def attack(root: str, examples: int, *more: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with this number of random cases for each endpoint."""
    program = Path(sys.executable).with_name("st")
    words = [
        str(program), "run", f"{root}/openapi.json", "--max-examples", str(examples), "--continue-on-failure",
        "--no-color", "--suppress-health-check", "all", "--request-timeout", "600",
        "--checks", ",".join(CHECKS), *more,
    ]  # fmt: skip
    return subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def mutate(rng: random.Random, body: bytes) -> bytes:
    """The body after one to four changes."""
    for _ in range(rng.randint(1, 4)):
        start, end = sorted(rng.randrange(len(body) + 1) for _ in range(2))
        end = min(end, start + rng.choice([0, 1, 4, 40]))
        new = rng.choice([b"", rng.randbytes(1), body[start:end] * 2, rng.choice(NASTY)])
        body = body[:start] + new + body[end:]
    return body if rng.random() < 0.9 else body[: rng.randrange(len(body) + 1)]


def send_mutations(root: str, count: int, seed: int = 0) -> Counter[int]:
    """The statuses of `count` mutated requests; raises if one is not as documented."""
    rng = random.Random(seed)
    statuses: Counter[int] = Counter()
    for number in range(count):
        body = mutate(rng, json.dumps(rng.choice(BODIES), ensure_ascii=rng.random() < 0.5).encode())
        connection = http.client.HTTPConnection(root.removeprefix("http://"), timeout=PATIENCE)
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        statuses[response.status] += 1
        whole = f"number {number} of seed {seed}: {response.status} for {body[:500]!r}: {content[:500]!r}"
        if response.status != 200:
            assert 400 <= response.status < 500, whole
            assert set(json.loads(content)["error"]) == {"message", "type", "param", "code"}, whole
        elif response.headers["content-type"].startswith("text/event-stream"):
            # An error that is known only later, as of a grammar that cannot be followed, ends the stream.
            assert content.endswith(b"data: [DONE]\n\n") or b'data: {"error":' in content, whole
        else:
            assert json.loads(content)["choices"], whole
    return statuses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--examples", type=int, default=1100, help="random cases of each endpoint")
    parser.add_argument("--mutations", type=int, default=1000, help="bodies with bytes changed")
    parser.add_argument("--seed", type=int, default=0, help="of the mutations")
    args = parser.parse_args()
    server = ServerProcess("--model", SHIPPED)
    code = 0
    try:
        if args.mutations:
            print(
                "mutated bodies by status:",
                dict(send_mutations(server.root, args.mutations, args.seed)),
                flush=True,
            )
        if args.examples:
            ended = attack(server.root, args.examples, "--phases", "coverage,fuzzing", "--workers", "2")
            print(ended.stdout)
            code = ended.returncode
    finally:
        server.stop()
    sys.exit(code)


if __name__ == "__main__":
    main()
