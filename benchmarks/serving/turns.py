"""How soon the second turn about a long text begins, while conversations alternate."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import httpx
import typer

from benchmarks.serving.servers import chunk_of, omnidraft

TEXT = Path(__file__).parents[1] / "peers/context.txt"
QUESTIONS = ("What is this text about?", "Which words are used most?")


def main(
    target: str = "smollm2-135m",
    characters: Annotated[int, typer.Option(min=1, help="Of each text.")] = 6000,
    conversations: Annotated[int, typer.Option(min=2)] = 4,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
) -> None:
    """Measure and print."""
    whole = TEXT.read_text("utf-8")
    server = omnidraft(target)
    turns: list[list[dict[str, float]]] = [[], []]
    try:
        with httpx.Client(timeout=600) as client:
            model = client.get(f"{server.url}/v1/models").json()["data"][0]["id"]
            told: list[list[dict[str, str]]] = []
            for number in range(conversations):
                begin = number * (len(whole) - characters) // conversations
                asked = f"{whole[begin : begin + characters]}\n\n{QUESTIONS[0]}"
                told.append([{"role": "user", "content": asked}])
            first_answer(client, server.url, model, [{"role": "user", "content": "Hello"}])
            for turn in range(2):
                for messages in told:
                    figures, answer = first_answer(client, server.url, model, messages)
                    turns[turn].append(figures)
                    messages.append({"role": "assistant", "content": answer})
                    messages.append({"role": "user", "content": QUESTIONS[1]})
    finally:
        server.stop()
    medians = [statistics.median(each["seconds"] for each in turn) for turn in turns]
    for turn, median in zip(turns, medians, strict=True):
        prompt, kept = (
            statistics.median(each[name] for each in turn) for name in ("prompt", "kept")
        )
        print(f"first token after {median:.3f} s: {prompt:.0f} tokens of prompt, {kept:.0f} kept")
    print(f"{medians[0] / medians[1]:.1f} times sooner")
    if json_file:
        settings = {"target": target, "conversations": conversations, "load": os.getloadavg()[0]}
        json_file.write_text(json.dumps({**settings, "turns": turns}, indent=1) + "\n")


def first_answer(
    client: httpx.Client, url: str, model: str, messages: list[dict[str, str]]
) -> tuple[dict[str, float], str]:
    """Seconds to the first text, tokens of the prompt and how many were kept; the answer."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first, text = perf_counter(), 0.0, ""
    usage: dict[str, Any] = {}
    with client.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if (chunk := chunk_of(line)) is None:
                continue
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                if said := choice["delta"].get("content"):
                    first = first or perf_counter() - began
                    text += said
    kept = usage["prompt_tokens_details"]["cached_tokens"]
    return {"seconds": first, "prompt": usage["prompt_tokens"], "kept": kept}, text
