"""Teachers behind a server that speaks OpenAI's protocol: vLLM, llama-server and others.

What is sampled are answers, with the log-probabilities that the server gives. The user's words are
openings; one that is only begun the server is first asked to complete.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from random import Random
from typing import Any

import numpy as np

from omnidraft.distill.config import Sampling, ServerTeacher
from omnidraft.distill.sampling.openings import opening
from omnidraft.distill.shards import ANSWER, TOP, USER, Document
from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError

_COMPLETE = (
    "Write one message that a person could send to an assistant. It begins with the words below. "
    "Answer with the whole message and nothing else.\n\n"
)
_ATTEMPTS = 4


class ServerSampler:
    """A ``Sampler`` by a server.

    Raises:
        MissingDependencyError: httpx is not installed.
        OmniDraftError: the key is not in the environment.
    """

    def __init__(self, teacher: ServerTeacher, sampling: Sampling) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingDependencyError(
                "Teachers behind a server need httpx: pip install 'omnidraft[distill]'"
            ) from error
        headers = {}
        if teacher.key_variable is not None:
            key = os.environ.get(teacher.key_variable)
            if not key:
                raise OmniDraftError(
                    f"The environment has no {teacher.key_variable}, which is to hold the key of "
                    f"{teacher.url}."
                )
            headers["Authorization"] = f"Bearer {key}"
        self._errors = httpx.HTTPError
        self._client = httpx.Client(
            base_url=teacher.url.rstrip("/"), headers=headers, timeout=teacher.timeout
        )
        self._teacher, self._sampling = teacher, sampling
        self._numbers: dict[bytes | None, int] = {}

    @property
    def surfaces(self) -> list[bytes | None]:
        """See ``Sampler``; it grows with the documents."""
        return list(self._numbers)

    def documents(self, seed: int) -> Iterator[Document]:
        """See ``Sampler``."""
        random = Random(seed)
        with ThreadPoolExecutor(self._teacher.requests) as pool:
            running: set[Future[tuple[str, list[Mapping[str, Any]]]]] = set()
            try:
                while True:
                    while len(running) < self._teacher.requests:
                        running.add(pool.submit(self._answer, Random(random.getrandbits(63))))
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for each in done:
                        question, pieces = each.result()
                        if pieces:
                            yield self._document(question, pieces)
            finally:
                for each in running:
                    each.cancel()

    def _answer(self, random: Random) -> tuple[str, list[Mapping[str, Any]]]:
        """A question, and the answer's tokens as the protocol has them."""
        question, whole = opening(random, self._sampling.openings)
        if not whole:
            wanted = {"temperature": 1.0, "max_tokens": 200, "seed": random.getrandbits(31)}
            said = self._chat(_COMPLETE + (question or "(any words)"), wanted)
            question = str(said["message"]["content"] or "").strip()
        if not question:
            return "", []
        choice = self._chat(
            question,
            {
                "temperature": random.choice(self._sampling.temperatures),
                "max_tokens": self._sampling.longest // 2,
                "logprobs": True,
                "top_logprobs": TOP,
                "seed": random.getrandbits(31),
            },
        )
        content = (choice.get("logprobs") or {}).get("content")
        if not content and choice["message"]["content"]:
            raise OmniDraftError(
                f"{self._teacher.url} gives no log-probabilities. Start it so that it does, or "
                'take its text (kind = "text").'
            )
        return question, content or []

    def _chat(self, question: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        body = {
            "model": self._teacher.model,
            "messages": [{"role": "user", "content": question}],
            **options,
        }
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = self._client.post("/chat/completions", json=body)
                if response.status_code < 500 and response.status_code != 429:
                    response.raise_for_status()
                    choice: Mapping[str, Any] = response.json()["choices"][0]
                    choice["message"]["content"]
                    return choice
                problem = f"{response.status_code}"
            except self._errors as error:
                problem = str(error) or type(error).__name__
                status = getattr(getattr(error, "response", None), "status_code", None)
                if status is not None:
                    raise OmniDraftError(
                        f"{self._teacher.url} refuses the request: {problem}"
                    ) from error
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise OmniDraftError(
                    f"{self._teacher.url} does not speak OpenAI's protocol: {error}"
                ) from error
            if attempt == _ATTEMPTS:
                raise OmniDraftError(
                    f"{self._teacher.url} does not answer ({problem}). What was sampled is "
                    "kept; run the command again when the server is there."
                )
            time.sleep(2.0**attempt)
        raise AssertionError

    def _document(self, question: str, pieces: list[Mapping[str, Any]]) -> Document:
        # The question is one piece: its words' segmentation is the drafter's own.
        asked = [self._number(f"{question}\n".encode())]
        tokens = [*asked, *(self._number(_surface(piece)) for piece in pieces)]
        count = len(tokens)
        top, shares = np.zeros((count, TOP), np.int32), np.zeros((count, TOP), np.float16)
        likelihoods = np.full(count, np.nan, np.float32)
        for i, piece in enumerate(pieces, len(asked)):
            likelihoods[i] = piece["logprob"]
            for k, other in enumerate(piece.get("top_logprobs", [])[:TOP]):
                top[i, k] = self._number(_surface(other))
                shares[i, k] = math.exp(min(0.0, other["logprob"]))
        kinds = np.array([USER] * len(asked) + [ANSWER] * len(pieces), np.int8)
        return Document(np.array(tokens, np.int32), kinds, top, shares, likelihoods)

    def _number(self, surface: bytes | None) -> int:
        return self._numbers.setdefault(surface, len(self._numbers))


def _surface(piece: Mapping[str, Any]) -> bytes | None:
    """The bytes of a token; None for one that shows none."""
    data = piece.get("bytes")
    surface = bytes(data) if data is not None else str(piece["token"]).encode()
    return surface or None
