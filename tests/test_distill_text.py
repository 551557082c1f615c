"""What a drafter is made of: configurations, sampled text, and the same text in its own tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs
from tiny import byte_level_tokenizer, sentencepiece_tokenizer

from omnidraft.distill.config import Config, load_config
from omnidraft.distill.documents import UNKNOWN, Documents, build, load_documents, save_documents
from omnidraft.distill.shards import ANSWER, FORCED, TOP, USER, Document, Shard
from omnidraft.distill.spellings import Speller
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError
from omnidraft.runtime.text.tokenizer import Tokenizer

TOY = """
name = "toy"
held_out = 4
tokenizer = "tokenizer"
[[teachers]]
kind = "text"
name = "lines"
licence = "CC0-1.0"
files = ["*.jsonl"]
[training]
[[training.stages]]
steps = 2
rate = 1e-3
"""


def draft_tokenizer() -> Tokenizer:
    settings = json.dumps({"bos_token": "<s>", "eos_token": "</s>"}).encode()
    content = sentencepiece_tokenizer().to_str().encode()
    return Tokenizer({"tokenizer.json": content, "tokenizer_config.json": settings})


SPELLER = Speller(draft_tokenizer())
TEACHER = byte_level_tokenizer()
SURFACES = [
    *Tokenizer({"tokenizer.json": TEACHER.to_str().encode()}).surfaces,
    None,  # a control token
]
CONTROL = len(SURFACES) - 1


def written(text: str, seed: int = 0) -> Document:
    """A question, a control token and an answer, with random probabilities."""
    random = np.random.default_rng(seed)
    ids = TEACHER.encode(text).ids
    half = len(ids) // 2
    tokens = np.array([CONTROL, *ids[:half], CONTROL, *ids[half:]], np.int32)
    kinds = np.array([FORCED, *[USER] * half, FORCED, *[ANSWER] * (len(ids) - half)], np.int8)
    top = random.integers(0, len(SURFACES), (len(tokens), TOP)).astype(np.int32)
    top[:, 0] = tokens
    shares = -np.sort(-random.random((len(tokens), TOP)), axis=1) / TOP
    shares[0] = 0
    likelihoods = np.log(random.uniform(0.1, 1, len(tokens))).astype(np.float32)
    return Document(tokens, kinds, top, shares.astype(np.float16), likelihoods)


def built(document: Document, canonical: float, **options: Any) -> Documents:
    how = {"user_weight": 0.1, "longest": 10_000, "seed": 0} | options
    return build(Shard(SURFACES, [document]), SPELLER, canonical=canonical, **how)


def bytes_of(tokens: Any) -> bytes:
    surfaces = draft_tokenizer().surfaces
    return b"".join(surfaces[token] or b"" for token in tokens)


@settings(max_examples=60)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=60), canonical=st.booleans())
def test_a_document_says_the_same_in_the_drafters_tokens(text: str, canonical: bool) -> None:
    document = written(text)
    documents = built(document, float(canonical))
    assert documents.tokens[0] == SPELLER.begin
    said = b"".join(SURFACES[token] or b"\n" for token in document.tokens)
    assert bytes_of(documents.tokens) == said
    assert list(documents.lengths) == [len(documents.tokens)]
    np.testing.assert_allclose(documents.shares[1:].astype(np.float64).sum(axis=1), 1, atol=0.01)
    # Control tokens are not learned, questions little, answers wholly.
    assert set(np.unique(documents.weights)) <= set(np.array([0, 0.1, 1], np.float16))
    answer = b"".join(SURFACES[t] or b"" for t in document.tokens[document.kinds == ANSWER])
    assert bytes_of(documents.tokens[documents.weights == 1]) == answer


@settings(max_examples=40)
@given(text=st.text(st.characters(codec="utf-8"), min_size=2, max_size=60), canonical=st.booleans())
def test_chunks_have_the_likelihood_of_all_that_was_said(text: str, canonical: bool) -> None:
    document = written(text)
    chunks = built(document, float(canonical)).chunks
    learned = built(document, float(canonical)).weights > 0
    spoken = np.isin(document.kinds, (USER, ANSWER))
    expected = document.likelihoods[spoken].sum()
    assert np.nansum(chunks[learned]) == pytest.approx(expected, abs=1e-3)
    unknown = replace(document, likelihoods=np.full_like(document.likelihoods, np.nan))
    chunks = built(unknown, float(canonical)).chunks
    assert set(chunks[~np.isnan(chunks)]) <= {UNKNOWN}


def test_labels_are_the_teachers_probabilities_by_first_draft_tokens() -> None:
    document = written("hello world")
    documents = built(document, 0.0)
    controls = np.array([surface is None for surface in SURFACES])
    likely = document.shares.astype(np.float64) * ~controls[document.top]
    place = 1
    for token, top, share in zip(document.tokens, document.top, likely, strict=True):
        surface = SURFACES[token]
        pieces = SPELLER.control if surface is None else SPELLER.spell(surface)
        mass = np.zeros(SPELLER.vocab_size)
        np.add.at(mass, documents.labels[place], documents.shares[place].astype(np.float64))
        expected = np.zeros(SPELLER.vocab_size)
        if share.sum() > 0:
            for other, p in zip(top, share / share.sum(), strict=True):
                if (likelier := SURFACES[other]) is not None:
                    expected[SPELLER.spell(likelier)[0]] += p
        else:
            expected[pieces[0]] = 1
        np.testing.assert_allclose(mass, expected, atol=2e-3)
        place += len(pieces)


def test_cuts_are_before_the_header_the_question_and_the_answer() -> None:
    head = [CONTROL, *TEACHER.encode("system").ids, CONTROL, *TEACHER.encode("user").ids]
    shard = []
    for text in ("one thing", "two things", "what else"):
        document = written(text)
        kinds = np.concatenate([np.zeros(len(head), np.int8), document.kinds[1:]])
        tokens = np.concatenate([np.array(head, np.int32), document.tokens[1:]])
        extra = len(head) - 1
        shard.append(
            Document(
                tokens,
                kinds,
                np.concatenate([np.zeros((extra, TOP), np.int32), document.top]),
                np.concatenate([np.zeros((extra, TOP), np.float16), document.shares]),
                np.concatenate([np.zeros(extra, np.float32), document.likelihoods]),
            )
        )
    documents = build(
        Shard(SURFACES, shard), SPELLER, canonical=0, user_weight=0.1, longest=500, seed=0
    )
    for start, length, (header, words, answer) in zip(
        documents.starts, documents.lengths, documents.cuts, strict=True
    ):
        tokens = documents.tokens[start : start + length]
        assert bytes_of(tokens[1 : header + 1]) == b"\nsystem"
        assert bytes_of(tokens[1 : words + 1]) == b"\nsystem\nuser"
        assert documents.weights[start + answer + 1] == 1
        assert not (documents.weights[start : start + answer + 1] == 1).any()


def test_documents_come_back_from_a_file(tmp_path: Path) -> None:
    documents = built(written("hello world"), 0.0)
    path = tmp_path / "deep" / "documents"
    save_documents(path, documents)
    again = load_documents(path)
    for name in vars(documents):
        np.testing.assert_array_equal(getattr(documents, name), getattr(again, name))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match="Delete it"):
        load_documents(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "toy"', 'name = "../toy"'), "name"),
        (("steps = 2", "steps = 0"), "steps must"),
        (("rate = 1e-3", "rate = nan"), "rate"),
        (('kind = "text"', 'kind = "oracle"'), "kind"),
        (("held_out = 4", "held_out = 4\nheldout = 3"), "heldout is not known"),
        (("[training]", "[drafter]\nhidden_size = 30\nheads = 4\n[training]"), "hidden_size"),
        (("[training]", "[sampling]\nopenings = {poems = 1}\n[training]"), "poems"),
        (("[training]", "[sampling]\nopenings = {prompts = 1}\n[training]"), "prompts"),
        (
            (
                "[training]",
                '[[sampling.prompts]]\nname = "a"\nlicence = "b"\nfiles = ["c"]\n[training]',
            ),
            "share of prompts",
        ),
        (('name = "toy"', "name = "), "no TOML"),
        (("[training]", "[drafter]\nhidden_size = 20\nheads = 2\n[training]"), "multiple of 32"),
        (("[training]", "[drafter]\nfeed_forward_size = 900\n[training]"), "multiple of 32"),
        (("[training]", "[drafter]\nhidden_size = 1000000000000\n[training]"), "hidden_size"),
        (("[training]", "[sampling]\nopenings = {chat = 1e308}\n[training]"), "chat"),
        (("held_out = 4", f"held_out = 4\nseed = {10**26}"), "seed"),
        (("held_out = 4", 'held_out = "4"'), "held_out"),
        (("held_out = 4", "held_out = true"), "held_out"),
        (("rate = 1e-3", "rate = 1e300"), "rate"),
    ],
)
def test_a_wrong_configuration_is_refused(
    tmp_path: Path, change: tuple[str, str], said: str
) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(TOY.replace(*change))
    with pytest.raises(OmniDraftError, match=said):
        load_config(path)


def test_a_configuration_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "toy.toml"
    path.write_text(TOY, "utf-8-sig")
    assert load_config(path).name == "toy"


def toy(tmp_path: Path, lines: int, **changes: str) -> tuple[Config, Path]:
    with (tmp_path / "lines.jsonl").open("w") as file:
        for i in range(lines):
            messages = [
                {"role": "user", "content": f"Question {i}?"},
                {"role": "assistant", "content": f"It is {i}, as always."},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")
    text = TOY.replace("[training]", "[sampling]\nshard_tokens = 6\n[training]")
    for old, new in changes.items():
        text = text.replace(old, new)
    path = tmp_path / "toy.toml"
    path.write_text(text)
    return load_config(path), path


def said_in(folder: Path) -> Iterator[str]:
    from omnidraft.distill.shards import read_shard, shards_of

    for path in shards_of(folder):
        shard = read_shard(path)
        for document in shard.documents:
            yield b"".join(shard.surfaces[token] or b"" for token in document.tokens).decode()


class StoppedError(Exception):
    pass


def test_text_is_sharded_once_whenever_it_is_stopped(tmp_path: Path) -> None:
    needs("pyarrow")
    from omnidraft.distill.sampled_text import sample
    from omnidraft.distill.shards import shards_of

    config, path = toy(tmp_path, 20)
    (teacher,) = config.teachers
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    sample(teacher, config, whole, path.parent, [])
    expected = sorted(f"Question {i}?\nIt is {i}, as always.\n" for i in range(20))
    assert sorted(said_in(whole)) == expected

    for _ in range(100):
        calls = 0

        def tell(done: int, wanted: int | None) -> None:
            nonlocal calls
            calls += 1
            if calls > 2:
                raise StoppedError

        try:
            sample(teacher, config, stopped, path.parent, shards_of(stopped), tell=tell)
            break
        except StoppedError:
            (stopped / ".part-00099.parquet.tmp").write_bytes(b"half")
    assert list(said_in(stopped)) == list(said_in(whole))


def test_shards_of_another_configuration_are_refused(tmp_path: Path) -> None:
    needs("pyarrow")
    from omnidraft.distill.sampled_text import sample
    from omnidraft.distill.shards import shards_of

    config, path = toy(tmp_path, 4)
    (teacher,) = config.teachers
    folder = tmp_path / "shards"
    sample(teacher, config, folder, path.parent, [])
    other = teacher.model_copy(update={"files": ["lines*"]})
    with pytest.raises(OmniDraftError, match="another configuration"):
        sample(other, config, folder, path.parent, shards_of(folder))
    # What changes no text does not matter.
    sample(
        teacher.model_copy(update={"licence": "another"}), config, folder, path.parent,
        shards_of(folder),
    )  # fmt: skip
    first = shards_of(folder)[0]
    first.write_bytes(first.read_bytes()[:40])
    with pytest.raises(OmniDraftError, match="damaged"):
        sample(teacher, config, folder, path.parent, shards_of(folder))


class Server(BaseHTTPRequestHandler):
    """Answers as OpenAI's protocol has it, in tokens of three bytes."""

    logprobs = True
    text = "Größe zählt."
    change: ClassVar[dict[str, Any]] = {}
    """What each token has otherwise than it should."""
    failures = 0
    answers = 10**6
    """After so many it fails."""
    asked = count()
    at_once = 10**6
    late = Event()
    """Until it is set only the first ``at_once`` get their answer."""
    refusal = b""
    at_a_time = 10**6
    """Bytes of an answer, after each of which it rests if it is one."""
    drips = Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refusal:
            self.say(400, self.refusal)
            return
        if type(self).failures or not type(self).answers:
            type(self).failures = max(0, type(self).failures - 1)
            self.send_error(503)
            return
        type(self).answers -= 1
        if body.get("logprobs") and next(self.asked) >= self.at_once:
            self.late.wait()
        text = self.text
        data = text.encode()
        pieces = [data[i : i + 3] for i in range(0, len(data), 3)]
        content = [
            {
                "token": piece.decode(errors="replace"),
                "bytes": list(piece),
                "logprob": -0.5,
                "top_logprobs": [
                    {"token": "?", "bytes": list(piece), "logprob": -0.5},
                    {"token": "x", "bytes": [120], "logprob": -1.5},
                ],
                **self.change,
            }
            for piece in pieces
        ]
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        if body.get("logprobs") and self.logprobs:
            choice["logprobs"] = {"content": content}
        self.say(200, json.dumps({"choices": [choice]}).encode())

    def say(self, status: int, answer: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        for i in range(0, len(answer), self.at_a_time):
            self.wfile.write(answer[i : i + self.at_a_time])
            if self.at_a_time == 1:
                self.drips.wait(0.1)

    def log_message(self, *_: Any) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """A client that has gone is no error."""


async def no_pause(seconds: float) -> None:
    pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    needs("httpx")
    needs("pyarrow")
    monkeypatch.setattr("asyncio.sleep", no_pause)
    Server.logprobs, Server.failures, Server.answers, Server.refusal = True, 0, 10**6, b""
    Server.text, Server.change, Server.at_a_time = "Größe zählt.", {}, 10**6
    Server.drips = Event()
    Server.asked, Server.at_once, Server.late = count(), 10**6, Event()
    with QuietServer(("127.0.0.1", 0), Server) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/v1"
        running.shutdown()


def by_server(tmp_path: Path, url: str) -> tuple[Config, Path]:
    fields = f'url = "{url}"\nmodel = "m"\ntokens = 60\nrequests = 2'
    return toy(tmp_path, 1, **{'kind = "text"': 'kind = "server"', 'files = ["*.jsonl"]': fields})


def test_a_server_gives_answers_and_their_probabilities(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampled_text import sample
    from omnidraft.distill.shards import read_shard, shards_of

    config, path = by_server(tmp_path, server)
    Server.failures = 2
    sample(config.teachers[0], config, tmp_path / "shards", path.parent, [])
    texts = list(said_in(tmp_path / "shards"))
    assert all(text.endswith("\nGröße zählt.") for text in texts)
    shard = read_shard(shards_of(tmp_path / "shards")[0])
    document = shard.documents[0]
    answer = document.kinds == ANSWER
    np.testing.assert_allclose(document.likelihoods[answer], -0.5)
    for place, logarithm in enumerate((-0.5, -1.5)):
        np.testing.assert_allclose(document.shares[answer, place], np.exp(logarithm), rtol=1e-3)
    assert (document.top[answer, 0] == document.tokens[answer]).all()


def test_a_server_without_probabilities_is_refused(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampled_text import sample

    config, path = by_server(tmp_path, server)
    Server.logprobs = False
    with pytest.raises(OmniDraftError, match="no log-probabilities"):
        sample(config.teachers[0], config, tmp_path / "shards", path.parent, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"top_logprobs": None}, "another form"),
        ({"top_logprobs": [3]}, "another form"),
        ({"top_logprobs": []}, "no log-probabilities of the likeliest"),
        ({"logprob": None}, "another form"),
        ({"logprob": "low"}, "another form"),
        ({"logprob": math.nan}, "another form"),
        ({"logprob": 5.0}, "another form"),
        ({"bytes": [300]}, "another form"),
        ({"bytes": "abc"}, "another form"),
        ({"token": None}, "another form"),
    ],
)
def test_probabilities_of_another_form_are_refused(
    tmp_path: Path, server: str, change: dict[str, Any], said: str
) -> None:
    from omnidraft.distill.sampling import open_sampler

    Server.change = change
    config, path = by_server(tmp_path, server)
    sampler = open_sampler(config.teachers[0], config, path.parent, [])
    with pytest.raises(OmniDraftError, match=said):
        next(sampler.documents(0))


def test_what_is_hardly_likely_stays_finite(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampling import open_sampler

    Server.change = {"logprob": -math.inf}
    config, path = by_server(tmp_path, server)
    document = next(open_sampler(config.teachers[0], config, path.parent, []).documents(0))
    assert np.isfinite(document.likelihoods[1:]).all()


def test_a_server_that_says_nothing_is_asked_no_more(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampling import open_sampler

    Server.text = ""
    config, path = by_server(tmp_path, server)
    sampler = open_sampler(config.teachers[0], config, path.parent, [])
    with pytest.raises(OmniDraftError, match="empty answers"):
        next(sampler.documents(0))


def test_an_answer_that_does_not_end_is_not_waited_for(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampling import open_sampler

    Server.at_a_time = 1
    config, path = by_server(tmp_path, server)
    teacher = config.teachers[0].model_copy(update={"timeout": 0.5})
    sampler = open_sampler(teacher, config, path.parent, [])
    with pytest.raises(OmniDraftError, match="does not answer"):
        next(sampler.documents(0))
    Server.drips.set()


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://localhost/v1", "http://a\\n/v1", "http://[::1/v1"]
)
def test_a_url_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    needs("httpx")
    from omnidraft.distill.sampling import open_sampler

    config, path = by_server(tmp_path, url)
    with pytest.raises(OmniDraftError, match="url"):
        open_sampler(config.teachers[0], config, path.parent, [])


def test_a_server_that_is_gone_is_named(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampled_text import sample

    config, path = by_server(tmp_path, server)
    Server.failures = 10**6
    with pytest.raises(OmniDraftError, match="does not answer"):
        sample(config.teachers[0], config, tmp_path / "shards", path.parent, [])


@pytest.mark.parametrize("requests", [1, 3])
def test_what_a_server_gave_is_kept_when_it_fails(
    tmp_path: Path, server: str, requests: int
) -> None:
    from omnidraft.distill.sampled_text import sample
    from omnidraft.distill.shards import count_shard, shards_of

    config, path = by_server(tmp_path, server)
    teacher = config.teachers[0].model_copy(update={"tokens": 400, "requests": requests})
    config = config.model_copy(
        update={"sampling": config.sampling.model_copy(update={"shard_tokens": 10**6})}
    )
    folder = tmp_path / "shards"
    Server.answers = 20
    with pytest.raises(OmniDraftError, match="is kept"):
        sample(teacher, config, folder, path.parent, shards_of(folder))
    kept = list(said_in(folder))
    # An answer takes one request or two; those of the last questions may be missing.
    assert len(kept) >= 10 - requests
    Server.answers = 10**6
    sample(teacher, config, folder, path.parent, shards_of(folder))
    assert list(said_in(folder))[: len(kept)] == kept
    assert sum(count_shard(each)[1] for each in shards_of(folder)) >= 400


def with_prompts(
    folder: Path, url: str, lines: str = '{"prompt": "Who?"}\n'
) -> tuple[Config, Path]:
    _, path = by_server(folder, url)
    text = path.read_text("utf-8").replace("[sampling]", "[sampling]\nopenings = {prompts = 1}")
    text += '[[sampling.prompts]]\nname = "ours"\nlicence = "CC0-1.0"\nfiles = ["asked/*.jsonl"]\n'
    path.write_text(text, "utf-8")
    (folder / "asked").mkdir(exist_ok=True)
    (folder / "asked" / "a.jsonl").write_text(lines, "utf-8")
    return load_config(path), path


def test_conversations_begin_with_the_prompts_that_are_given(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampled_text import sample
    from omnidraft.distill.sampling import open_sampler
    from omnidraft.distill.sampling.prompts import read_prompts
    from omnidraft.distill.shards import shards_of

    two = '{"prompt": "Who?"}\n\n{"prompt": "Wo, am Meer?\\u2028", "task": "x"}\n'
    config, path = with_prompts(tmp_path, server, two)
    (teacher,) = config.teachers
    prompts = read_prompts(config.sampling.prompts, path.parent)
    sampler = open_sampler(teacher, config, path.parent, prompts)
    documents = sampler.documents(0)
    asked = [next(documents).tokens[0] for _ in range(30)]
    documents.close()
    assert {sampler.surfaces[token] for token in asked} == {
        b"Who?\n",
        "Wo, am Meer?\u2028\n".encode(),
    }
    folder = tmp_path / "shards"
    sample(teacher, config, folder, path.parent, [])
    there = shards_of(folder)
    sample(teacher, config, folder, path.parent, there)
    config, path = with_prompts(tmp_path, server)
    with pytest.raises(OmniDraftError, match="another configuration"):
        sample(teacher, config, folder, path.parent, there)


@pytest.mark.parametrize(
    "line",
    [
        "Who?", "[1]", "{}", "[" * 100_000, '{"prompt": 3}', '{"prompt": " "}',
        '{"prompt": "\\ud800"}',
        '{"messages": [{"role": "user", "content": "Who?"}]}',
    ],
)  # fmt: skip
def test_a_line_without_a_prompt_is_named(tmp_path: Path, line: str) -> None:
    from omnidraft.distill.sampling.prompts import read_prompts

    config, path = with_prompts(tmp_path, "http://localhost:1/v1", '{"prompt": "Who?"}\n' + line)
    with pytest.raises(DamagedFileError, match="line 2"):
        read_prompts(config.sampling.prompts, path.parent)


def test_files_without_any_prompt_are_told_of(tmp_path: Path) -> None:
    from omnidraft.distill.sampling.prompts import read_prompts

    config, path = with_prompts(tmp_path, "http://localhost:1/v1", "\n \n")
    with pytest.raises(DamagedFileError, match=r"ours: .* hold no prompts"):
        read_prompts(config.sampling.prompts, path.parent)


def test_a_text_may_hold_line_separators_of_unicode(tmp_path: Path) -> None:
    from omnidraft.distill.sampling import open_sampler

    config, path = toy(tmp_path, 1)
    line = json.dumps({"text": "one\u2028two"}, ensure_ascii=False)
    for each in path.parent.glob("*.jsonl"):
        each.write_text(f"{line}\r\n{line}\n", "utf-8")
    sampler = open_sampler(config.teachers[0], config, path.parent, [])
    said = [sampler.surfaces[d.tokens[0]] for d in list(sampler.documents(0))]
    assert said[:2] == ["one\u2028two".encode()] * 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "caf\xe9"}', "not text in UTF-8"),
        ('{"text": "café"}'.encode("utf-16"), "not text in UTF-8"),
        (b'{"text": "half \\ud800"}', "not text in UTF-8"),
        (b"words", "neither"),
        (b'"text"', "neither"),
        (b'["text"]', "neither"),
        (b'{"text": null}', "neither"),
        (b'{"text": ["a", "b"]}', "neither"),
        (b'{"messages": "Who?"}', "neither"),
        (b'{"messages": []}', "neither"),
        (b"[" * 100_000, "neither"),
        (b'{"messages": [{"role": "user"}]}', "neither"),
        (b'{"messages": [{"role": "user", "content": 3}]}', "neither"),
    ],
)
def test_a_line_without_text_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    from omnidraft.distill.sampling import open_sampler

    config, path = toy(tmp_path, 1)
    for each in path.parent.glob("*.jsonl"):
        each.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n\n' + line)
    with pytest.raises(DamagedFileError, match=f"line [34]: .*{said}"):
        open_sampler(config.teachers[0], config, path.parent, [])


@pytest.mark.parametrize("before", ["", "\n \n", '{"text": "one"}\n{"text": 2}\n'])
def test_text_that_is_mended_is_read_whole(tmp_path: Path, before: str) -> None:
    needs("pyarrow")
    from omnidraft.distill.sampled_text import sample
    from omnidraft.distill.shards import shards_of

    config, path = toy(tmp_path, 1)
    (teacher,) = config.teachers
    folder, lines = tmp_path / "shards", tmp_path / "lines.jsonl"
    lines.write_text(before, "utf-8")
    with pytest.raises(DamagedFileError, match=r"\.jsonl"):
        sample(teacher, config, folder, path.parent, [])
    assert not shards_of(folder)
    lines.write_text("".join(f'{{"text": "{i}"}}\n' for i in range(40)), "utf-8")
    sample(teacher, config, folder, path.parent, shards_of(folder))
    assert sorted(said_in(folder)) == sorted(map(str, range(40)))
    lines.write_text('{"text": "other"}\n', "utf-8")
    with pytest.raises(OmniDraftError, match="other text"):
        sample(teacher, config, folder, path.parent, shards_of(folder))


def test_files_of_a_configuration_are_found_by_any_path(tmp_path: Path) -> None:
    from omnidraft.distill.files import named_files

    folder = tmp_path / "[odd] *"
    folder.mkdir()
    (folder / "a.jsonl").touch()
    (tmp_path / "b.jsonl").touch()
    found = named_files("ours", ["*.jsonl", "a*", "../b.jsonl", str(tmp_path / "b*")], folder)
    assert [path.name for path in found] == ["a.jsonl", "b.jsonl", "b.jsonl"]
    for pattern in ("", ".", "c.jsonl", str(tmp_path / "none*"), "a.jsonl/x"):
        with pytest.raises(OmniDraftError, match="ours: there is no file"):
            named_files("ours", [pattern], folder)


def test_prompts_that_are_all_too_long_are_told_of() -> None:
    needs("torch")
    from random import Random

    from omnidraft.distill.sampling.conversations import make_plans
    from omnidraft.distill.sampling.openings import Openings
    from omnidraft.distill.sampling.turns import Turns

    tokenizer = draft_tokenizer()
    turns = Turns([0], [0], None, frozenset({1}))
    some = Openings({"prompts": 1}, ["word " * 200, "hi"])
    plans = make_plans(5, tokenizer, turns, some, 64, Random(0))
    assert plans.lengths.max() < 32
    with pytest.raises(OmniDraftError, match="shorter prompts"):
        make_plans(5, tokenizer, turns, Openings({"prompts": 1}, ["word " * 200]), 64, Random(0))


def test_who_stops_waits_for_no_answer(tmp_path: Path, server: str) -> None:
    from omnidraft.distill.sampling import open_sampler

    config, path = by_server(tmp_path, server)
    Server.at_once = 1

    def one() -> None:
        documents = open_sampler(config.teachers[0], config, path.parent, []).documents(0)
        next(documents)
        documents.close()

    asking = Thread(target=one, daemon=True)
    asking.start()
    asking.join(60)  # half of what an answer may take
    assert not asking.is_alive()
    Server.late.set()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (b'{"error": {"message": "the model m is not known"}}', "the model m is not known"),
        (b"go away", "go away"),
        (b"", "400"),
    ],
)
def test_what_a_server_refuses_is_told_in_its_words(
    tmp_path: Path, server: str, refusal: bytes, said: str
) -> None:
    from omnidraft.distill.sampled_text import sample

    config, path = by_server(tmp_path, server)
    Server.refusal = refusal or b" "
    with pytest.raises(OmniDraftError, match=f"400: .*{said}" if refusal else said):
        sample(config.teachers[0], config, tmp_path / "shards", path.parent, [])
