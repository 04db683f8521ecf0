"""What other people's machines run: workflows, the container, compose, Kubernetes, the dashboard. Each name
in them exists here.

`make test-deploy` also checks them by their schemas, and builds and runs the container with podman. Where
podman needs options to work, GLASSGPT_PODMAN_BUILD and GLASSGPT_PODMAN_RUN have them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import glassgpt
from glassgpt.cli import COMMANDS
from glassgpt.cli.parser.parse import parse

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: make test installs it")

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "serve"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_make_targets_and_nothing_else(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for name, job in read_yaml(path)["jobs"].items():
        for step in job.get("steps", ()):
            if "run" in step:
                program, target, *settings = step["run"].split()
                assert (program, target in targets) == ("make", True), f"{name}: {step['run']}"
                assert all(re.fullmatch(r"[A-Z]+=\w+", setting) for setting in settings)


def test_tests_run_on_three_systems_and_every_python() -> None:
    jobs = read_yaml(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]
    assert jobs["all"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {name.split("-")[0] for name in jobs["quick"]["strategy"]["matrix"]["system"]} >= {
        "macos",
        "windows",
    }


def test_hooks_before_a_commit_are_the_projects_own_checks() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("$(BIN)", ".venv/bin")
    for hook in read_yaml(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]:
        program = " ".join(hook["entry"].split()[:2])
        assert program in makefile, hook["id"]


def test_the_citation_is_of_this_version() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["version"] == glassgpt.__version__
    heading = f"## [{citation['version']}] - {citation['date-released']}"
    assert heading in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_number_of_the_dashboard_is_one_of_the_server() -> None:
    from glassgpt.serve.metrics import Metrics

    pool: Any = SimpleNamespace(loaded={})
    rendered = Metrics(pool).render().decode()
    known = set(re.findall(r"^# TYPE (\w+) (?:counter|gauge)$", rendered, re.M))
    known |= {f"{name}_bucket" for name in re.findall(r"^# TYPE (\w+) histogram$", rendered, re.M)}
    dashboard = json.loads((EXAMPLES / "glassgpt-dashboard.json").read_text("utf-8"))
    used = re.findall(r"glassgpt_\w+", json.dumps([panel["targets"] for panel in dashboard["panels"]]))
    assert len(set(used)) > 12
    assert set(used) - known == set()
    uids = {panel["datasource"]["uid"] for panel in dashboard["panels"]}
    assert uids == {read_yaml(EXAMPLES / "grafana.yaml")["datasources"][0]["uid"]}


def check_serve_arguments(words: list[str]) -> None:
    assert words[0] == "serve"
    parse("serve", COMMANDS["serve"], words[1:])


def test_compose_mounts_files_that_exist_and_needs_a_key() -> None:
    services = read_yaml(EXAMPLES / "compose.yaml")["services"]
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (EXAMPLES / volume.split(":")[0]).is_file(), (name, volume)
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
    build = services["server"]["build"]
    assert (EXAMPLES / build["context"] / build["dockerfile"]).resolve() == ROOT / "Containerfile"
    assert "GLASSGPT_API_KEY:?" in services["server"]["environment"]["GLASSGPT_API_KEY"].replace("${", "")
    target = read_yaml(EXAMPLES / "prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == ["server:8000"]


def test_kubernetes_runs_the_server_without_rights() -> None:
    with (EXAMPLES / "kubernetes.yaml").open() as file:
        deployment, service, _ = yaml.safe_load_all(file)
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    check_serve_arguments(container["args"])
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    user = re.search(r"^USER (\d+):", (ROOT / "Containerfile").read_text("utf-8"), re.M)
    assert user is not None
    assert pod["spec"]["securityContext"]["runAsUser"] == int(user[1])
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_the_container_serves_by_default() -> None:
    text = (ROOT / "Containerfile").read_text("utf-8")
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.M)
    check_serve_arguments(json.loads(command))
    allowed = (ROOT / ".containerignore").read_text("utf-8").split()
    copied = re.findall(r"^COPY (?!--from)(\S+)", text, re.M)
    assert allowed == ["*", *(f"!{source}" for source in sorted(copied))]


BASE = os.environ.get("GLASSGPT_CONTAINER_BASE")


def podman(*words: object) -> str:
    done = subprocess.run(["podman", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        print(done.stdout, done.stderr)
    done.check_returncode()
    return done.stdout.strip()


def inside(container: str, code: str) -> str:
    return podman("exec", container, "python", "-c", code)


def is_healthy(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def image() -> str:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    if not list((ROOT / "dist").glob("glassgpt-*linux*.whl")):
        pytest.skip("dist/ has no wheel for Linux: make wheels")
    options = shlex.split(os.environ.get("GLASSGPT_PODMAN_BUILD", ""))
    podman("build", "--format", "docker", *options, "--build-arg", f"BASE={BASE}", "-t", "glassgpt", ROOT)
    size = int(podman("image", "inspect", "--format", "{{.Size}}", "glassgpt"))
    base = int(podman("image", "inspect", "--format", "{{.Size}}", BASE))
    print(f"image: {size / 1e6:.0f} MB, of which the base has {base / 1e6:.0f}")
    return "glassgpt"


@pytest.fixture(scope="module")
def server(image: str) -> Iterator[tuple[str, str]]:
    """The container's id and its address."""
    options = shlex.split(os.environ.get("GLASSGPT_PODMAN_RUN", ""))
    on_host = "host" in options
    publish = [] if on_host else ["-p", "127.0.0.1::8000"]
    started = time.perf_counter()
    container = podman("run", "-d", "--read-only", "--cap-drop", "all", *options, *publish, image)
    try:
        address = "127.0.0.1:8000" if on_host else podman("port", container, "8000")
        while not is_healthy(address):
            assert podman("inspect", "--format", "{{.State.Running}}", container) == "true"
            time.sleep(0.05)
        seconds = time.perf_counter() - started
        ticks = (
            Path("/proc") / podman("inspect", "--format", "{{.State.Pid}}", container) / "stat"
        ).read_text()
        user, system = map(int, ticks.rsplit(")", 1)[1].split()[11:13])
        cpu = (user + system) / os.sysconf("SC_CLK_TCK")
        print(f"/health answers after {cpu:.2f} s of CPU time, {seconds:.1f} s on the clock")
        yield container, address
    finally:
        podman("rm", "--force", "--time", "10", container)


@pytest.mark.skipif(BASE is None, reason="make test-deploy builds and runs the container")
class TestContainer:
    def test_it_completes_texts(self, server: tuple[str, str]) -> None:
        body = json.dumps(
            {"model": "default", "prompt": "The old house", "max_tokens": 8, "seed": 1}
        ).encode()
        request = urllib.request.Request(
            f"http://{server[1]}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert answer["usage"]["completion_tokens"] == 8

    def test_it_has_no_rights(self, server: tuple[str, str]) -> None:
        status = inside(server[0], "print(open('/proc/1/status').read())")
        assert re.search(r"^Uid:\s+65532\s", status, re.M)
        assert re.search(r"^CapEff:\s+0+$", status, re.M)
        with pytest.raises(subprocess.CalledProcessError) as refused:
            inside(server[0], "open('/opt/glassgpt/x', 'w')")
        assert "Read-only file system" in refused.value.stderr

    def test_its_engine_is_the_compiled_one(self, server: tuple[str, str]) -> None:
        report = json.loads(podman("exec", server[0], "glassgpt", "doctor", "--json"))
        assert report["problems"] == []
        assert report["engine"]["kernels"] != "portable"

    def test_its_health_check_passes_and_sigterm_ends_it(self, server: tuple[str, str]) -> None:
        check = podman("image", "inspect", "--format", "{{json .HealthCheck.Test}}", "glassgpt")
        kind, *command = json.loads(check)
        assert kind == "CMD"
        podman("exec", server[0], *command)
        podman("stop", "--time", "60", server[0])
        assert podman("inspect", "--format", "{{.State.ExitCode}}", server[0]) == "143"  # SIGTERM
