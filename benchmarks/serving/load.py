"""Clients that ask at once, break off, and see the server crash: latencies, and what it holds."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import httpx
import typer

from benchmarks.serving.exact import PROMPTS
from benchmarks.serving.servers import Server, chunk_of, llamacpp, omnidraft
from omnidraft.runtime.cores import default_threads
from omnidraft.runtime.models.resolve import resolve_checkpoint

MAX_TOKENS = 48
BREAK_OFF = 0.25
OURS = "omnidraft"


@dataclass(frozen=True)
class Asking:
    """What clients ask of a server."""

    server: Server
    model: str
    prompts: list[str]
    right: dict[str, str]
    """The answers of plain decoding, where they must be the same."""


@dataclass
class Seen:
    """What clients saw."""

    first: list[float] = field(default_factory=list)
    """Seconds to the first text of an answer."""
    between: list[float] = field(default_factory=list)
    """Seconds for each further token of an answer that was read to its end, on average."""
    rates: list[float] = field(default_factory=list)
    """Tokens a second of such an answer, from the first text on."""
    tokens: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def main(
    target: str = "smollm2-135m",
    clients: Annotated[str, typer.Option(help="Numbers of clients.")] = "1,2,4,16",
    seconds: Annotated[float, typer.Option(min=1, help="For each number.")] = 150,
    kills: Annotated[int, typer.Option(min=0, help="Crashes at the last number.")] = 2,
    llama: Annotated[bool, typer.Option("--llamacpp", help="llama.cpp's server, too.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    numbers = [int(each) for each in clients.split(",")]
    prompts = [json.loads(line)["prompt"][:400] for line in PROMPTS.read_text().splitlines()][:12]
    plain = omnidraft(target, "--no-draft")
    model = httpx.get(f"{plain.url}/v1/models").json()["data"][0]["id"]
    right = {}
    for prompt in prompts:
        answer = httpx.post(
            f"{plain.url}/v1/chat/completions", json=body_of(model, prompt, False), timeout=600
        )
        right[prompt] = answer.json()["choices"][0]["message"]["content"]
    plain.stop()
    threads = default_threads()
    ways = {
        OURS: lambda: omnidraft(target, "--queue", "16"),
        f"{OURS}, one after the other": lambda: omnidraft(
            target, "--queue", "16", "--at-once", "1"
        ),
    }
    if llama:
        gguf = resolve_checkpoint(target)
        ways["llama.cpp"] = lambda: llamacpp(gguf, threads, max(numbers))
    figures: dict[str, Any] = {}
    for way, start in ways.items():
        server = start()
        figures[way] = {}
        try:
            ours = way.startswith(OURS)
            asking = Asking(server, model, prompts, right if ours else {})
            asyncio.run(phase(asking, 1, 3.0, 0))  # warm
            for number in numbers:
                crashes = kills if number == numbers[-1] and ours else 0
                before = server.holds()
                seen = asyncio.run(phase(asking, number, seconds, crashes))
                told = summary(seen, seconds)
                told["holds before"], told["holds after"] = before, server.holds()
                if ours:
                    told["waiting after"] = waiting(server)
                figures[way][str(number)] = told
                print(way, number, json.dumps(told), flush=True)
        finally:
            server.stop()
    if json_file:
        settings = {
            "target": target,
            "threads": threads,
            "seconds": seconds,
            "max_tokens": MAX_TOKENS,
            "broken off": BREAK_OFF,
            "kills": kills,
            "load": os.getloadavg()[0],
        }
        json_file.write_text(json.dumps({**settings, **figures}, indent=1) + "\n")


def body_of(model: str, prompt: str, stream: bool) -> dict[str, Any]:
    """A request for a greedy answer."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    return body


async def phase(asking: Asking, clients: int, seconds: float, kills: int) -> Seen:
    """So many clients for so long."""
    seen = Seen()
    until = perf_counter() + seconds
    tasks = [
        asyncio.create_task(one_client(asking, number, until, seen)) for number in range(clients)
    ]
    draw = random.Random(clients)
    for _ in range(kills):
        await asyncio.sleep(seconds / (kills + 1) * draw.uniform(0.7, 1.0))
        asking.server.kill()
        await asyncio.to_thread(asking.server.start)
        seen.counts["crashes"] += 1
    await asyncio.gather(*tasks)
    return seen


async def one_client(asking: Asking, number: int, until: float, seen: Seen) -> None:
    """Ask until the time is over."""
    draw = random.Random(1000 + number)
    headers = {"User-Agent": f"client {number}"}
    async with httpx.AsyncClient(timeout=600, headers=headers) as client:
        while perf_counter() < until:
            prompt = draw.choice(asking.prompts)
            most = draw.randint(0, 20) if draw.random() < BREAK_OFF else None
            try:
                await one_answer(client, asking, prompt, most, seen)
            except (httpx.TransportError, httpx.StreamError):
                seen.counts["connection lost"] += 1
                await asyncio.sleep(0.5)


async def one_answer(
    client: httpx.AsyncClient, asking: Asking, prompt: str, most: int | None, seen: Seen
) -> None:
    """Read a stream, to its end or as far as ``most`` texts."""
    began = perf_counter()
    first = 0.0
    text, texts, reason, tokens = "", 0, None, 0
    path = f"{asking.server.url}/v1/chat/completions"
    body = body_of(asking.model, prompt, True)
    async with client.stream("POST", path, json=body) as response:
        if response.status_code == 429:
            seen.counts["429"] += 1
            await asyncio.sleep(float(response.headers["retry-after"]))
            return
        if response.status_code != 200:
            seen.counts[f"status {response.status_code}"] += 1
            await asyncio.sleep(0.5)
            return
        async for line in response.aiter_lines():
            if (chunk := chunk_of(line)) is None:
                continue
            if "error" in chunk:
                seen.counts["error in a stream"] += 1
                return
            if usage := chunk.get("usage"):
                tokens = usage["completion_tokens"]
            for choice in chunk["choices"]:
                reason = choice["finish_reason"] or reason
                if said := choice["delta"].get("content"):
                    if not texts:
                        first = perf_counter()
                        seen.first.append(first - began)
                    text += said
                    texts += 1
            if most is not None and texts > most:
                seen.counts["broken off"] += 1
                return
    if reason is None:
        seen.counts["connection lost"] += 1
        return
    seen.counts["whole"] += 1
    seen.tokens += tokens
    if tokens > 1:
        seen.between.append((perf_counter() - first) / (tokens - 1))
        seen.rates.append((tokens - 1) / (perf_counter() - first))
    if prompt in asking.right and text != asking.right[prompt]:
        seen.counts["wrong"] += 1


def summary(seen: Seen, seconds: float) -> dict[str, Any]:
    """Counts, and percentiles in milliseconds."""

    def percentiles(values: list[float]) -> dict[str, float]:
        if len(values) < 2:
            return {}
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        return {name: cuts[at - 1] * 1000 for name, at in (("p50", 50), ("p95", 95), ("p99", 99))}

    return {
        "counts": dict(seen.counts),
        "tokens_per_second": seen.tokens / seconds,
        "stream_tokens_per_second": statistics.median(seen.rates) if seen.rates else None,
        "first_token_ms": percentiles(seen.first),
        "token_ms": percentiles(seen.between),
    }


def waiting(server: Server) -> float:
    """Requests that wait, as the server's figures say."""
    text = httpx.get(f"{server.url}/metrics").text
    lines = [line for line in text.splitlines() if "waiting" in line and not line.startswith("#")]
    return sum(float(line.split()[-1]) for line in lines)
