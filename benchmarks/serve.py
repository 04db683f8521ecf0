"""`glassgpt serve` under load, on this machine, started by its command and asked over real sockets.

    python benchmarks/serve.py                       # everything but `peers`, about ten minutes on two cores
    python benchmarks/serve.py throughput peers      # some of it
    python benchmarks/serve.py overload --requests 10000

| part | what it measures |
| --- | --- |
| throughput | tokens/s of 16 concurrent streams, and of one |
| peers | the same against `transformers serve` on the same weights, alternating |
| overload | ten times as many requests as it can serve: 429s, the queue, memory, time to the first token |
| memory | resident memory after every thousand of 10,000 requests of all kinds |
| loris | the latency of /health beside 500 sockets that send half a request |
| invariance | 200 prompts: alone = in a batch = with a prefix in the cache, greedy |
| kills | 200 clients that vanish at random moments: rows and memory afterwards |
| sigterm | SIGTERM under load: what was admitted is finished |

A table for people, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = (
    "the old house stood at end of a lane and no one had lived there since war came to our village".split()
)


@dataclass
class Answer:
    status: int
    first: float  # seconds to the first byte of a token
    seconds: float
    tokens: int
    text: str = ""


class Server:
    """A server process, and what it tells about itself."""

    def __init__(self, command: list[str], port: int) -> None:
        self.port = port
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while not self.is_healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"it did not start: {' '.join(command)}")
            time.sleep(0.1)

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            found: bytes = answer.read()
            return found

    def is_healthy(self) -> bool:
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def metric(self, name: str) -> float:
        lines = self.get("/metrics").decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"glassgpt_{name}{{"))

    def memory(self) -> float:
        """Resident megabytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def serving(*options: str, port: int = 8765, model: str = "default") -> Iterator[Server]:
    command = [sys.executable, "-m", "glassgpt", "serve", "--model", model, "--port", str(port), *options]
    server = Server(command, port)
    try:
        yield server
    finally:
        server.stop()


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(port: int, idle: list[Connection] | None = None, **fields: Any) -> Answer:
    """One streamed completion, over its own connection or one of the `idle`, as clients keep them."""
    body = json.dumps({"stream": True, "temperature": 0, **fields}).encode()
    begun = time.perf_counter()
    while idle and idle[-1][0].at_eof():
        idle.pop()  # the server has closed it
    kept = idle.pop() if idle else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port) if kept is None else kept
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    head += "Connection: close\r\n" if idle is None else ""
    writer.write((head + "Content-Type: application/json\r\n\r\n").encode() + body)
    first, tokens, text = 0.0, 0, []
    try:
        line = await reader.readline()
        if not line and kept is not None:  # it was closed just now
            return await ask(port, idle, **fields)
        status = int(line.split()[1])
        headers = (await reader.readuntil(b"\r\n\r\n")).lower()
        if status != 200:
            await reader.readexactly(int(headers.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        while status == 200 and (line := await reader.readline()) not in (b"0\r\n", b""):
            if line.startswith(b"data: {"):
                if not tokens:
                    first = time.perf_counter() - begun
                tokens += 1
                choices = json.loads(line[6:]).get("choices")
                text.append(choices[0]["text"] if choices else "")
        if idle is not None:
            if status == 200:
                await reader.readline()  # after the last chunk
            idle.append((reader, writer))
    finally:
        if idle is None:
            writer.close()
    return Answer(status, first, time.perf_counter() - begun, tokens, "".join(text))


def prompt(rng: random.Random, words: int = 24) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


async def streams(port: int, count: int, tokens: int, **fields: Any) -> float:
    """Tokens per second of so many concurrent streams."""
    rng = random.Random(count)
    begun = time.perf_counter()
    answers = await asyncio.gather(
        *(ask(port, prompt=prompt(rng), max_tokens=tokens, **fields) for _ in range(count))
    )
    assert all(answer.status == 200 for answer in answers), answers
    return sum(answer.tokens for answer in answers) / (time.perf_counter() - begun)


def throughput(args: argparse.Namespace) -> dict[str, Any]:
    """One stream, sixteen, and sixteen short ones, in which reading the prompts is a larger part."""
    with serving() as server:
        asyncio.run(streams(server.port, 16, 8, ignore_eos=True))
        speeds: dict[tuple[int, int], list[float]] = {
            (1, args.tokens): [], (16, args.tokens): [], (16, args.tokens // 4): [],
        }  # fmt: skip
        for _ in range(args.rounds):
            for (count, tokens), found in speeds.items():
                found.append(asyncio.run(streams(server.port, count, tokens, ignore_eos=True)))
    one, many, short = (statistics.median(found) for found in speeds.values())
    return {
        "one_tokens_per_s": one, "sixteen_tokens_per_s": many, "ratio": many / one,
        "sixteen_short_tokens_per_s": short,
    }  # fmt: skip


def peers(args: argparse.Namespace) -> dict[str, Any]:
    """`transformers serve` takes a folder's name for the model, and knows no ignore_eos."""
    import glassgpt  # noqa: F401  # before anything is started: is it installed at all?

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "glassgpt", "convert", "default", folder, "--dtype", "float32"],
            check=True, capture_output=True,
        )  # fmt: skip
        theirs = [
            str(Path(sys.executable).with_name("transformers")), "serve", folder, "--port", "8767",
            "--host", "127.0.0.1", "--device", "cpu",
        ]  # fmt: skip
        if args.peer_batching:
            theirs += ["--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512"]
        other = Server(theirs, 8767)
        speeds: dict[str, list[float]] = {"glassgpt": [], "transformers": []}
        try:
            with serving(*(["--dtype", args.dtype] if args.dtype else [])) as server:
                for number in range(args.rounds + 1):
                    for name, port, model in (
                        ("glassgpt", server.port, "default"),
                        ("transformers", other.port, folder),
                    ):
                        many = (16, args.tokens) if number else (1, 4)  # to warm up
                        speed = asyncio.run(streams(port, *many, model=model))
                        if number:
                            speeds[name].append(speed)
        finally:
            other.stop()
    ours, them = (statistics.median(found) for found in speeds.values())
    return {"glassgpt_tokens_per_s": ours, "transformers_tokens_per_s": them, "ratio": ours / them}


async def closed_load(port: int, clients: int, requests: int, **fields: Any) -> list[Answer]:
    """So many clients, each of which sends its next request when it has the answer to the last."""
    rng, answers, left = random.Random(clients), [], requests

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            answers.append(await ask(port, prompt=prompt(rng), **fields))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def open_load(port: int, per_s: float, requests: int, **fields: Any) -> list[Answer]:
    """Poisson arrivals, whether or not the server keeps up."""
    rng, asked = random.Random(requests), []
    idle: list[Connection] = []
    due = time.perf_counter()
    for _ in range(requests):
        due += rng.expovariate(per_s)
        await asyncio.sleep(due - time.perf_counter())
        asked.append(asyncio.create_task(ask(port, idle, prompt=prompt(rng), **fields)))
    answers = await asyncio.gather(*asked)
    for _, writer in idle:
        writer.close()
    return answers


def overload(args: argparse.Namespace) -> dict[str, Any]:
    """Capacity: requests/s of as many clients as rows. Then Poisson arrivals: unloaded at a tenth of that, as
    the server is by default; overloaded at ten times that, with --max-wait."""
    rows, fields = 16, {"max_tokens": args.short, "ignore_eos": True}
    with serving("--max-batch-size", str(rows), model=args.model) as server:
        asyncio.run(closed_load(server.port, rows, 8 * rows, **fields))
        begun = time.perf_counter()
        asyncio.run(closed_load(server.port, rows, 20 * rows, **fields))
        capacity = 20 * rows / (time.perf_counter() - begun)
        unloaded = asyncio.run(open_load(server.port, capacity / 10, args.unloaded_requests, **fields))
    options = ("--max-batch-size", str(rows), "--max-wait", str(args.max_wait))
    with serving(*options, model=args.model) as server:
        waiting: list[float] = []

        async def load(count: int) -> list[Answer]:
            asked = asyncio.create_task(open_load(server.port, 10 * capacity, count, **fields))
            while not asked.done():
                waiting.append(await asyncio.to_thread(server.metric, "requests_waiting"))
                await asyncio.wait([asked], timeout=0.5)
            return asked.result()

        asyncio.run(load(300))
        answers: list[Answer] = []
        marks = [server.memory()]  # after every thousand requests
        begun = time.perf_counter()
        while len(answers) < args.requests:
            answers += asyncio.run(load(min(1000, args.requests - len(answers))))
            marks.append(server.memory())
        seconds = time.perf_counter() - begun
    admitted = [answer for answer in answers if answer.status == 200]
    assert {answer.status for answer in unloaded} == {200}
    assert {answer.status for answer in answers} <= {200, 429}
    before, after = ([1000 * answer.first for answer in some] for some in (unloaded, admitted))
    return {
        "capacity_per_s": capacity, "offered_per_s": len(answers) / seconds,
        "requests": len(answers), "admitted": len(admitted), "rejected_429": len(answers) - len(admitted),
        "admitted_per_s": len(admitted) / seconds,
        "max_wait_s": args.max_wait, "most_waiting": max(waiting),
        "memory_mb": [round(mark) for mark in marks],
        "unloaded_first_ms": statistics.median(before), "unloaded_p99_first_ms": p99(before),
        "loaded_first_ms": statistics.median(after), "loaded_p99_first_ms": p99(after),
        "ratio": p99(after) / p99(before),
    }  # fmt: skip


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Requests of all kinds: wrong ones, ones that nobody waits for, and one in four with a new schema."""
    rng, kinds = random.Random(4), Counter[int]()

    def fields(number: int) -> dict[str, Any]:
        made = {"prompt": prompt(rng), "max_tokens": 4, "stream": rng.random() < 0.5}
        more: list[dict[str, Any]] = [
            {"echo": True, "logprobs": 5, "n": 2},
            {"guided_json": {"enum": [f"{number}", number]}, "max_tokens": 8},
            {"temperature": -number - 1},  # a 400
            {"prompt": prompt(rng, 200)},
        ]
        return {**made, **rng.choice(more)}

    async def one(port: int, number: int) -> None:
        patience = rng.random() / 10 if rng.random() < 0.1 else 600
        try:
            kinds[(await asyncio.wait_for(ask(port, **fields(number)), patience)).status] += 1
        except TimeoutError:
            kinds[0] += 1

    async def thousand(port: int, first: int) -> None:
        numbers = iter(range(first, first + 1000))

        async def client() -> None:
            for number in numbers:
                await one(port, number)

        await asyncio.gather(*(client() for _ in range(16)))

    with serving("--explorer", model=args.model) as server:
        marks = [server.memory()]
        for first in range(0, args.requests, 1000):
            asyncio.run(thousand(server.port, first))
            marks.append(server.memory())
        left = server.metric("requests_running") + server.metric("requests_waiting")
    return {
        "answered": kinds[200], "refused": kinds[400], "abandoned": kinds[0], "rows_left": left,
        "memory_mb": [round(mark) for mark in marks],
    }  # fmt: skip


def loris(args: argparse.Namespace) -> dict[str, Any]:
    import socket

    with serving(model=args.model) as server:
        sockets = []
        for _ in range(500):
            made = socket.create_connection(("127.0.0.1", server.port))
            made.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-")
            sockets.append(made)
        times = []
        for _ in range(100):
            begun = time.perf_counter()
            server.get("/health")
            times.append(time.perf_counter() - begun)
            with suppress(OSError):
                sockets[random.randrange(500)].sendall(b"x")
        for made in sockets:
            made.close()
    return {
        "sockets": 500,
        "health_p50_ms": 1000 * statistics.median(times),
        "health_max_ms": 1000 * max(times),
    }


def invariance(args: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(1)
    start = prompt(rng, 120)
    prompts = [f"{start} {prompt(rng, rng.randint(1, 60))}" for _ in range(200)]

    async def together(port: int) -> list[str]:
        asked = (ask(port, prompt=text, max_tokens=16, ignore_eos=True) for text in prompts)
        return [answer.text for answer in await asyncio.gather(*asked)]

    async def alone(port: int) -> list[str]:
        return [(await ask(port, prompt=text, max_tokens=16, ignore_eos=True)).text for text in prompts]

    with serving(model=args.model) as server:
        batched = asyncio.run(together(server.port))  # and with prefix hits, after the first few
        hits = server.metric("prefix_cache_hits_total")
    with serving("--max-batch-size", "1", model=args.model) as server:
        single = asyncio.run(alone(server.port))
        single_hits = server.metric("prefix_cache_hits_total")
    cold = read_alone(args.model, prompts, 16)
    return {
        "prompts": len(prompts), "prefix_hit_tokens": [hits, single_hits],
        "batch_equals_alone_without_cache": sum(a == b for a, b in zip(batched, cold, strict=True)),
        "batch_equals_batch_size_1": sum(a == b for a, b in zip(batched, single, strict=True)),
    }  # fmt: skip


def read_alone(model: str, prompts: list[str], tokens: int) -> list[str]:
    """Greedy texts in this process, one after the other, each prompt read from its beginning."""
    import glassgpt
    from glassgpt.generate import Engine, SamplingParams

    gpt = glassgpt.load(model)
    engine = Engine(gpt.backend.with_rows(1), gpt.tokenizer, prefix_cache=False)
    texts = []
    for text in prompts:
        engine.add(gpt.encode(text), SamplingParams(max_new_tokens=tokens, temperature=0, ignore_eot=True))
        while engine.busy:
            texts += [event.generation.text for event in engine.step() if event.generation is not None]
    return texts


def kills(args: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(2)

    async def killed(port: int) -> None:
        with suppress(TimeoutError, OSError):
            fields = {"prompt": prompt(rng), "max_tokens": 200, "ignore_eos": True, "n": 2}
            await asyncio.wait_for(ask(port, stream=rng.random() < 0.5, **fields), rng.random())

    async def wave(port: int, count: int) -> None:
        await asyncio.gather(*(killed(port) for _ in range(count)))

    with serving(model=args.model) as server:
        asyncio.run(wave(server.port, 20))
        before = server.memory()
        for _ in range(10):
            asyncio.run(wave(server.port, 20))
        time.sleep(1)
        left = server.metric("requests_running") + server.metric("requests_waiting")
        after = server.memory()
    return {"killed": 200, "rows_left": left, "memory_mb": [round(before), round(after)]}


def sigterm(args: argparse.Namespace) -> dict[str, Any]:
    async def run(server: Server) -> list[Answer | BaseException]:
        rng = random.Random(3)
        asked = [
            asyncio.create_task(ask(server.port, prompt=prompt(rng), max_tokens=48, ignore_eos=True))
            for _ in range(48)
        ]
        while await asyncio.to_thread(server.metric, "requests_waiting") < 24:
            await asyncio.sleep(0.02)
        admitted = await asyncio.to_thread(server.metric, "requests_running")
        admitted += await asyncio.to_thread(server.metric, "requests_waiting")
        assert admitted == 48, admitted
        server.process.send_signal(signal.SIGTERM)
        return await asyncio.gather(*asked, return_exceptions=True)

    with serving(model=args.model) as server:
        answers = asyncio.run(run(server))
        begun = time.perf_counter()
        code = server.process.wait(60)
    whole = [a for a in answers if isinstance(a, Answer) and a.status == 200 and a.tokens == 48]
    return {
        "admitted": len(answers), "finished": len(whole), "exit_code": code,
        "exit_after_last_s": time.perf_counter() - begun,
    }  # fmt: skip


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "throughput": throughput, "peers": peers, "overload": overload, "memory": memory, "loris": loris,
    "invariance": invariance, "kills": kills, "sigterm": sigterm,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all but peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64, help="of a stream")
    parser.add_argument("--short", type=int, default=16, help="tokens of a request in overload")
    parser.add_argument("--requests", type=int, default=10_000, help="of overload and memory")
    parser.add_argument("--unloaded-requests", type=int, default=500, help="of overload, before it")
    parser.add_argument("--max-wait", type=float, default=0.0, help="of overload")
    parser.add_argument("--model", default="default", help="of all parts but throughput and peers")
    parser.add_argument(
        "--dtype", help="ours in peers; theirs is float32, the shipped model is stored in int8"
    )
    parser.add_argument("--peer-batching", action="store_true", help="transformers with continuous batching")
    args = parser.parse_args()
    found = {}
    for name in args.parts or [part for part in PARTS if part != "peers"]:
        found[name] = {
            key: round(value, 2) if isinstance(value, float) else value
            for key, value in PARTS[name](args).items()
        }
        print(f"{name:<11}", *(f"{key} {value}" for key, value in found[name].items()), sep="  ", flush=True)
    print(json.dumps({"serve": found}))


if __name__ == "__main__":
    main()
