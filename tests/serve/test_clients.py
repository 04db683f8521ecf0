"""Other people's clients, unmodified, in a separate environment: `make test-clients` installs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from glassgpt.gpt import GPT
from tests.conftest import SHIPPED
from tests.serve.conftest import PATIENCE, PROMPT, ServerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "clients"
VENV = Path(os.environ.get("GLASSGPT_CLIENTS", ROOT / ".venv-clients"))


@pytest.fixture(scope="module")
def expected(gpt: GPT) -> str:
    return gpt.generate(PROMPT, max_new_tokens=12, temperature=0).text


def client_program(name: str) -> Path:
    program = VENV / "bin" / name
    if not program.exists():
        pytest.skip(f"{name} is not in {VENV.name}: make test-clients installs it")
    return program


def run(*words: Any, **environment: str) -> str:
    ended = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": "", **environment},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


@pytest.mark.parametrize(
    ("name", "count", "error"), [("langchain", 9, None), ("litellm", 3, "ContextWindowExceededError")]
)
def test_a_library(server: ServerProcess, expected: str, name: str, count: int, error: str | None) -> None:
    python = client_program("python")
    found = json.loads(run(python, SCRIPTS / f"use_{name}.py", server.url, SHIPPED, PROMPT).splitlines()[-1])
    assert found["texts"] == [expected] * count
    assert found.get("error") == error


def test_the_llm_command(server: ServerProcess, expected: str, tmp_path: Path) -> None:
    program = client_program("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: ours\n  model_name: {SHIPPED}\n  api_base: {server.url}\n  completion: true\n"
    )
    options = ["-o", "temperature", "0", "-o", "max_tokens", "12"]
    home = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "any"}
    for more in ([], ["--no-stream"]):
        assert run(program, "-m", "ours", PROMPT, *options, *more, **home).rstrip("\n") == expected.rstrip()


def test_promptfoo(server: ServerProcess, expected: str, tmp_path: Path) -> None:
    program = shutil.which("promptfoo", path=VENV / "node_modules" / ".bin")
    if program is None:
        pytest.skip(f"promptfoo is not in {VENV.name}: make test-clients installs it")
    provider = {
        "id": f"openai:completion:{SHIPPED}",
        "config": {"apiBaseUrl": server.url, "apiKey": "any", "temperature": 0, "max_tokens": 12},
    }
    tests = [{"vars": {"text": PROMPT}, "assert": [{"type": "contains", "value": expected.strip()}]}]
    config = tmp_path / "promptfooconfig.json"
    config.write_text(json.dumps({"prompts": ["{{text}}"], "providers": [provider], "tests": tests}))
    out = tmp_path / "out.json"
    quiet = {"PROMPTFOO_DISABLE_TELEMETRY": "1", "PROMPTFOO_DISABLE_UPDATE": "1", "HOME": str(tmp_path)}
    run(program, "eval", "-c", config, "-o", out, "--no-cache", "--no-share", **quiet)
    assert json.loads(out.read_text())["results"]["stats"]["successes"] == 1
