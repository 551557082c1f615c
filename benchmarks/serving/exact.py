"""Conversations over HTTP, drafted, beside those of a server that decodes plainly."""

from __future__ import annotations

import json
import os
import random
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from benchmarks.serving.servers import omnidraft

PROMPTS = Path(__file__).parents[1] / "peers/prompts.jsonl"
ON = [
    "Say it in one sentence.",
    "Now for a child of six, please.",
    "Give another example.",
    "Which part of that is least certain?",
    "Write it as a short list.",
]
SCHEMA = {
    "type": "object",
    "properties": {
        "short": {"type": "string", "maxLength": 40},
        "sure": {"type": "boolean"},
        "score": {"type": "integer", "minimum": 0, "maximum": 10},
    },
    "required": ["short", "sure", "score"],
    "additionalProperties": False,
}
TURNS = 4
AT_ONCE = 4
"""Conversations that take turns, so that each displaces the others' texts."""


def main(
    target: str = "smollm2-135m",
    conversations: Annotated[int, typer.Option(min=1)] = 100,
    max_tokens: Annotated[int, typer.Option(min=1)] = 32,
    adapter: Annotated[str, typer.Option(help="Learns meanwhile; empty: none does.")] = "serving",
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Compare and print."""
    with tempfile.TemporaryDirectory() as data:
        os.environ["OMNIDRAFT_DATA"] = data  # where adapters are kept
        compare(target, conversations, max_tokens, adapter, json_file)


def compare(
    target: str, conversations: int, max_tokens: int, adapter: str, json_file: Path | None
) -> None:
    """Hold the conversations with both servers."""
    learn = ["--adapter", adapter, "--learn"] if adapter else []
    drafting = omnidraft(target, *learn)
    plain = omnidraft(target, "--no-draft", "--keep-memory", "0")
    asked = [json.loads(line)["prompt"][:300] for line in PROMPTS.read_text("utf-8").splitlines()]
    counts: Counter[str] = Counter()
    differences: list[dict[str, Any]] = []
    ended = threading.Event()
    try:
        with httpx.Client(timeout=600) as client:
            models = [each["id"] for each in client.get(f"{plain.url}/v1/models").json()["data"]]
            served = [each["id"] for each in client.get(f"{drafting.url}/v1/models").json()["data"]]
            other = threading.Thread(target=disturb, args=(drafting.url, served[0], asked, ended))
            other.start()
            for begin in range(0, conversations, AT_ONCE):
                numbers = range(begin, min(begin + AT_ONCE, conversations))
                told: dict[int, list[dict[str, str]]] = {number: [] for number in numbers}
                for number in numbers:
                    if number % 3 == 0:
                        told[number].append({"role": "system", "content": "Be brief and friendly."})
                for turn in range(TURNS):
                    for number in numbers:
                        text = asked[number % len(asked)] if not turn else ON[(number + turn) % 5]
                        told[number].append({"role": "user", "content": text})
                        body: dict[str, Any] = {
                            "model": models[0],
                            "messages": told[number],
                            "max_tokens": max_tokens,
                            "temperature": 0.8 if number % 2 else 0,
                            "seed": number,
                        }
                        if number % 5 == 4:
                            form = {"name": "form", "schema": SCHEMA}
                            body["response_format"] = {"type": "json_schema", "json_schema": form}
                            body["max_tokens"] = 200
                        right = ask(client, plain.url, body)
                        body["model"] = served[number // 2 % len(served)]
                        found = ask(client, drafting.url, body)
                        counts["turns"] += 1
                        counts["identical"] += found["choices"] == right["choices"]
                        counts["under a schema"] += "response_format" in body
                        counts["prompt tokens"] += found["usage"]["prompt_tokens"]
                        counts["kept"] += found["usage"]["prompt_tokens_details"]["cached_tokens"]
                        counts["tokens"] += found["usage"]["completion_tokens"]
                        if found["choices"] != right["choices"]:
                            differences.append({"asked": body, "right": right, "found": found})
                        answer = right["choices"][0]["message"]["content"]
                        told[number].append({"role": "assistant", "content": answer})
                print(f"{numbers[-1] + 1} of {conversations}: {dict(counts)}", flush=True)
    finally:
        ended.set()
        for each in (drafting, plain):
            each.stop()
    print(f"{counts['identical']} of {counts['turns']} answers identical")
    if json_file:
        settings = {"target": target, "conversations": conversations, "max_tokens": max_tokens}
        figures = {**settings, "learning": bool(adapter), **counts, "differences": differences}
        json_file.write_text(json.dumps(figures, indent=1) + "\n")


def ask(client: httpx.Client, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """An answer of a server."""
    response = client.post(f"{url}/v1/chat/completions", json=body)
    if response.status_code != 200:
        raise SystemExit(f"{response.status_code}: {response.text}")
    answer: dict[str, Any] = response.json()
    return answer


def disturb(url: str, model: str, asked: list[str], ended: threading.Event) -> None:
    """Be another client, which asks now and then and breaks half of its answers off."""
    draw = random.Random(0)
    with httpx.Client(timeout=600, headers={"User-Agent": "another"}) as client:
        while not ended.wait(draw.uniform(0, 4)):
            body = {
                "model": model,
                "messages": [{"role": "user", "content": draw.choice(asked)}],
                "max_tokens": draw.randint(1, 40),
                "stream": True,
            }
            most = draw.choice([1, 5, 1000])
            with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
                for count, _ in enumerate(response.iter_lines()):
                    if count >= most or ended.is_set():
                        break
