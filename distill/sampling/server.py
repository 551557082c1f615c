"""Teachers behind a server that speaks OpenAI's protocol: vLLM, llama-server and others.

What is sampled are answers, with the log-probabilities that the server gives. The user's words are
openings; one that is only begun the server is first asked to complete.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import math
import os
from collections.abc import Iterator, Mapping
from random import Random
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from omnidraft.distill.config import Sampling, ServerTeacher
from omnidraft.distill.sampling.openings import Openings
from omnidraft.distill.shards import ANSWER, TOP, USER, Document
from omnidraft.runtime.errors import MissingDependencyError, OmniDraftError
from omnidraft.runtime.storage.validation import mistakes

_COMPLETE = (
    "Write one message that a person could send to an assistant. It begins with the words below. "
    "Answer with the whole message and nothing else.\n\n"
)
_LONGEST_QUESTION = 200  # tokens
_ATTEMPTS = 4
_EMPTY = 50  # answers without a token, one after the other, after which no more is asked
_LEAST = -9999.0  # what OpenAI's servers give for the least likely


class _Token(BaseModel):
    """A token as the protocol has it."""

    token: str
    bytes: list[Annotated[int, Field(ge=0, le=255)]] | None = None
    logprob: Annotated[float, Field(le=1e-3)]  # a little above 0 where a server rounds

    @property
    def surface(self) -> builtins.bytes | None:
        """Its bytes; None for one that shows none."""
        if self.bytes is not None:
            return bytes(self.bytes) or None
        return self.token.encode() or None


class _Piece(_Token):
    top_logprobs: list[_Token]


_PIECES = TypeAdapter(list[_Piece])
_Answer = tuple[str, list[_Piece]]
"""A question, and the answer's tokens."""


class ServerSampler:
    """A ``Sampler`` by a server.

    Raises:
        MissingDependencyError: httpx is not installed.
        OmniDraftError: the key is not in the environment, or the url is none.
    """

    def __init__(self, teacher: ServerTeacher, sampling: Sampling, openings: Openings) -> None:
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
            if not (key.isascii() and key.isprintable()):
                raise OmniDraftError(
                    f"{teacher.key_variable} holds what no key can: other than plain letters."
                )
            headers["Authorization"] = f"Bearer {key}"
        try:
            url = httpx.URL(teacher.url)
        except httpx.InvalidURL as error:
            raise OmniDraftError(f"{teacher.name}: url is no address: {error}.") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise OmniDraftError(
                f"{teacher.name}: url must be like http://localhost:8000/v1, not {teacher.url!r}."
            )
        self._errors = httpx.HTTPError
        self._headers, self._open = headers, httpx.AsyncClient
        self._teacher, self._sampling, self._openings = teacher, sampling, openings
        self._numbers: dict[bytes | None, int] = {}

    @property
    def surfaces(self) -> list[bytes | None]:
        """See ``Sampler``; it grows with the documents."""
        return list(self._numbers)

    def documents(self, seed: int) -> Iterator[Document]:
        """See ``Sampler``. Closed or interrupted, it waits for no answer that is under way."""
        random = Random(seed)
        running: set[asyncio.Task[_Answer]] = set()
        with asyncio.Runner() as runner:
            client = self._open(
                base_url=self._teacher.url.rstrip("/"),
                headers=self._headers,
                timeout=self._teacher.timeout,
            )

            async def some() -> list[_Answer]:
                while len(running) < self._teacher.requests:
                    answer = self._answer(client, Random(random.getrandbits(63)))
                    running.add(asyncio.create_task(answer))
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                done = {each for each in running if each.done()}
                whole = {each for each in done if each.exception() is None}
                if not whole:
                    done.pop().result()
                # What failed is told the next time, so that no answer is lost by it.
                running.difference_update(whole)
                return [each.result() for each in whole]

            async def stop() -> None:
                for each in running:
                    each.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                await client.aclose()

            empty = 0
            try:
                while True:
                    for question, pieces in runner.run(some()):
                        empty = 0 if pieces else empty + 1
                        if pieces:
                            yield self._document(question, pieces)
                    if empty >= _EMPTY:
                        raise OmniDraftError(
                            f"{self._teacher.url} gave {empty} empty answers, one after the other. "
                            "What was sampled is kept; try the model by hand."
                        )
            finally:
                runner.run(stop())

    async def _answer(self, client: Any, random: Random) -> _Answer:
        question, whole = self._openings.draw(random)
        if not whole:
            wanted = {
                "temperature": 1.0,
                "max_tokens": min(_LONGEST_QUESTION, self._sampling.longest // 2),
                "seed": random.getrandbits(31),
            }
            said = await self._chat(client, _COMPLETE + (question or "(any words)"), wanted)
            question = str(said["message"]["content"] or "").strip()
        if not question:
            return "", []
        choice = await self._chat(
            client,
            question,
            {
                "temperature": random.choice(self._sampling.temperatures),
                "max_tokens": self._sampling.longest // 2,
                "logprobs": True,
                "top_logprobs": TOP,
                "seed": random.getrandbits(31),
            },
        )
        if not choice["message"]["content"]:
            return question, []
        try:
            pieces = _PIECES.validate_python((choice.get("logprobs") or {}).get("content") or [])
        except (ValidationError, AttributeError) as error:
            what = mistakes(error) if isinstance(error, ValidationError) else str(error)
            raise OmniDraftError(
                f"{self._teacher.url} gives log-probabilities of another form than OpenAI's: {what}"
            ) from error
        if not any(piece.top_logprobs for piece in pieces):
            raise OmniDraftError(
                f"{self._teacher.url} gives no log-probabilities of the likeliest tokens. Start it "
                'so that it does, or take its text (kind = "text").'
            )
        return question, pieces

    async def _chat(
        self, client: Any, question: str, options: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        body = {
            "model": self._teacher.model,
            "messages": [{"role": "user", "content": question}],
            **options,
        }
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                # The client's own limit is one on each read.
                async with asyncio.timeout(self._teacher.timeout):
                    response = await client.post("/chat/completions", json=body)
                if 400 <= response.status_code < 500 and response.status_code != 429:
                    raise OmniDraftError(
                        f"{self._teacher.url} refuses the request with status "
                        f"{response.status_code}: {_reason(response.text)}"
                    )
                if response.status_code < 400:
                    choice: Mapping[str, Any] = response.json()["choices"][0]
                    if not isinstance(choice["message"]["content"], str | None):
                        raise TypeError("an answer's content is no text")
                    return choice
                problem = f"{response.status_code}"
            except (self._errors, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise OmniDraftError(
                    f"{self._teacher.url} does not speak OpenAI's protocol: {error}"
                ) from error
            if attempt == _ATTEMPTS:
                raise OmniDraftError(
                    f"{self._teacher.url} does not answer ({problem}). What was sampled is "
                    "kept; run the command again when the server is there."
                )
            await asyncio.sleep(2.0**attempt)
        raise AssertionError

    def _document(self, question: str, pieces: list[_Piece]) -> Document:
        # The question is one piece: its words' segmentation is the drafter's own.
        asked = [self._number(f"{question}\n".encode())]
        tokens = [*asked, *(self._number(piece.surface) for piece in pieces)]
        count = len(tokens)
        top, shares = np.zeros((count, TOP), np.int32), np.zeros((count, TOP), np.float16)
        likelihoods = np.full(count, np.nan, np.float32)
        for i, piece in enumerate(pieces, len(asked)):
            likelihoods[i] = max(_LEAST, piece.logprob)
            for k, other in enumerate(piece.top_logprobs[:TOP]):
                top[i, k] = self._number(other.surface)
                shares[i, k] = math.exp(min(0.0, other.logprob))
        kinds = np.array([USER] * len(asked) + [ANSWER] * len(pieces), np.int8)
        return Document(np.array(tokens, np.int32), kinds, top, shares, likelihoods)

    def _number(self, surface: bytes | None) -> int:
        return self._numbers.setdefault(surface, len(self._numbers))


def _reason(body: str) -> str:
    """What a server says of a request that it refuses: OpenAI's message, else how it begins."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:200] or "it does not say why"
