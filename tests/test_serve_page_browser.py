"""The page at / as a person uses it, in Chromium."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from needs import needs
from serving import served
from tiny import write_drafter, write_target

from omnidraft import GenerationOptions, Session, load_model
from omnidraft.serve.app import ServeOptions
from omnidraft.serve.requests import Defaults

needs("playwright")
sync = needs("playwright.sync_api")
expect = sync.expect
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if BROWSER is None:
    pytest.skip("there is no Chromium on this machine", allow_module_level=True)

QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
CHAT = "**/v1/chat/completions"
MODELS = "**/v1/models"
KEY = "a secret"


class Gate:
    """Holds a model's passes, so that an answer is under way as long as a test wants."""

    def __init__(self, model: Any) -> None:
        self._forward = model.forward
        self._open = threading.Event()
        self._open.set()
        self._left = 0
        model.forward = self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self._left == 0:
            assert self._open.wait(120)
        else:
            self._left -= 1
        return self._forward(*arguments, **options)

    def close_after(self, passes: int) -> None:
        self._open.clear()
        self._left = passes

    def open(self) -> None:
        self._open.set()
        self._left = 0


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    root = tmp_path_factory.mktemp("models")
    target = load_model(str(write_target(root / "target", context=2048)), threads=1)
    return Session(target, load_model(str(write_drafter(root / "drafter")), threads=1))


@pytest.fixture(scope="module")
def gate(session: Session) -> Gate:
    return Gate(session.target.model)


@pytest.fixture(scope="module")
def address(session: Session, gate: Gate) -> Iterator[str]:
    drafts = Defaults(temperature=0, draft_length=4, draft_confidence=0)
    with served({"tiny": session}, ServeOptions(drafts)) as place:
        yield place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture
def tab(browser: Any, address: str, gate: Gate) -> Iterator[Callable[..., Any]]:
    """Opens tabs of one window; each is watched for errors and for requests that go elsewhere.

    Where requests are to fail, ``failing`` lets the browser say so.
    """
    contexts: list[Any] = []
    troubles: list[str] = []

    def open_tab(**options: Any) -> Any:
        place, failing = options.pop("place", address), options.pop("failing", False)
        if options or not contexts:
            contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)

        def console(message: Any) -> None:
            expected = failing and message.text.startswith("Failed to load resource")
            if message.type in ("error", "warning") and not expected:
                troubles.append(message.text)

        def request(asked: Any) -> None:
            if urlsplit(asked.url).netloc != urlsplit(place).netloc:
                troubles.append(f"asked {asked.url}")

        page.on("console", console)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", request)
        page.goto(place)
        return page

    yield open_tab
    gate.open()
    for context in contexts:
        context.close()
    assert troubles == []


def ready(page: Any) -> Any:
    expect(page.locator("#model")).to_be_enabled(timeout=60_000)
    return page


def limit(page: Any, tokens: int) -> None:
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Most tokens").fill(str(tokens))
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def ask(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answered(page: Any) -> Any:
    """The last answer, when it has ended."""
    last = page.locator(".message.answer").last
    expect(last.locator(".foot")).to_be_visible(timeout=60_000)
    expect(page.locator("#stop")).to_be_hidden()
    return last


def body(*pieces: dict[str, Any], done: bool = True) -> str:
    """A stream as the server sends it."""
    chunks = [
        {
            "choices": [{"index": 0, "delta": {"content": piece["text"]}, "finish_reason": None}],
            "omnidraft": {"pieces": [piece]},
        }
        for piece in pieces
    ]
    sent = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([*sent, "data: [DONE]\n\n"] if done else sent)


def tells(page: Any, *pieces: dict[str, Any], done: bool = True) -> None:
    """Answer the page's requests with this stream."""
    stream = {"status": 200, "headers": {"Content-Type": "text/event-stream; charset=utf-8"}}
    page.route(CHAT, lambda route: route.fulfill(**stream, body=body(*pieces, done=done)))


def piece(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, "origin": "direct", **more}


ROUND = {
    "tokens": ["One", " two", " six", "Ten"],
    "parents": [-1, 0, 0, -1],
    "accepted": [0, 1],
    "seconds": 0.1,
    "plain_tokens_per_second": 10.0,
}


def test_an_answer_comes_and_stays(tab: Callable[..., Any], session: Session, gate: Gate) -> None:
    page = ready(tab())
    limit(page, 40)
    gate.close_after(6)
    ask(page, "Hello")
    answer = page.locator(".message.answer").last
    expect(answer.locator(".t").first).to_be_visible()
    # While it comes.
    expect(page.locator("#stop")).to_be_visible()
    expect(answer.locator(".body")).to_have_attribute("aria-busy", "true")
    expect(page.get_by_role("region", name="Speed")).to_be_visible()
    expect(page.locator("#own-speed")).not_to_have_text("–")
    expect(page.locator("#announcer")).to_have_text("Answering")
    gate.open()
    # When it has come.
    answered(page)
    told = [{"role": "user", "content": "Hello"}]
    right = session.generate(told, GenerationOptions(40, draft_length=0)).text
    assert answer.locator(".body").evaluate("body => body.textContent") == right
    expect(answer.locator(".figures")).to_contain_text("40 tokens")
    assert page.locator("#announcer").text_content() == f"Answer: {right}"
    assert answer.locator(".t.direct, .t.merged, .t.corrected, .t.free").count() > 5
    # What other tabs and a reload see of it.
    other = ready(tab())
    expect(other.locator(".message")).to_have_count(0)
    limit(other, 4)
    ask(other, "Other")
    answered(other)
    page.reload()
    ready(page)
    expect(page.locator(".message")).to_have_count(2)
    assert answer.locator(".body").evaluate("body => body.textContent") == right
    expect(page.locator("#own-speed")).not_to_have_text("–")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".message")).to_have_count(0)
    expect(other.locator(".message")).to_have_count(2)


def test_it_is_stopped_and_asked_again(tab: Callable[..., Any], gate: Gate) -> None:
    page = ready(tab())
    for stop in ("click", "Escape"):
        gate.close_after(6)
        ask(page, "Hello")
        answer = page.locator(".message.answer").last
        expect(answer.locator(".t").first).to_be_visible()
        if stop == "click":
            page.get_by_role("button", name="Stop").click()
        else:
            page.keyboard.press(stop)
        expect(answer.locator(".note")).to_have_text("Stopped.")
        gate.open()
    # The server is free: without a limit the answer would have filled the context.
    limit(page, 8)
    with page.expect_request(CHAT) as sent:
        page.get_by_role("button", name="Answer again").click()
    asked = sent.value.post_data_json
    assert [each["role"] for each in asked["messages"]] == ["user", "assistant", "user"]
    expect(answered(page).locator(".figures")).to_contain_text("8 tokens")
    expect(page.locator(".message")).to_have_count(4)


def test_two_tabs_take_turns(tab: Callable[..., Any], gate: Gate) -> None:
    first, second = ready(tab()), ready(tab())
    for page in (first, second):
        limit(page, 12)
    gate.close_after(4)
    ask(first, "Hello")
    expect(first.locator(".t").first).to_be_visible()
    ask(second, "Hello")
    expect(second.locator(".note")).to_have_text("Waiting for its turn …")
    gate.open()
    for page in (first, second):
        expect(answered(page).locator(".figures")).to_contain_text("12 tokens")


def test_a_server_that_is_not_there(tab: Callable[..., Any]) -> None:
    page = ready(tab(failing=True))
    page.route(MODELS, lambda route: route.abort())
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("cannot be reached")
    page.get_by_label("Message", exact=True).fill("Hello")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    page.unroute(MODELS)
    page.get_by_role("button", name="Try again").click()
    ready(page)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_what_is_chosen_is_asked(tab: Callable[..., Any]) -> None:
    page = ready(tab())
    told = {"target": "tiny", "drafter": "small", "adapter": None, "learns": False}
    models = [
        {"id": "tiny", "omnidraft": told},
        {"id": "tiny:work", "omnidraft": {**told, "adapter": "work", "learns": True}},
        {"id": "plain", "omnidraft": {**told, "target": "plain", "drafter": None}},
    ]
    page.route(MODELS, lambda route: route.fulfill(json={"data": models}))
    tells(page, piece("One", round=ROUND))
    page.reload()
    ready(page)
    drafting, learning = (page.get_by_role("switch", name=n) for n in ("Drafting", "Learning"))

    def asked() -> dict[str, Any]:
        with page.expect_request(CHAT) as sent:
            ask(page, "Hello")
        answered(page)
        return sent.value.post_data_json

    first = asked()
    assert first["model"] == "tiny" and "draft_length" not in first
    learning.check()
    expect(page.locator("#model")).to_have_value("tiny:work")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Draft length").select_option("8")
    page.keyboard.press("Escape")
    second = asked()
    assert (second["model"], second["draft_length"], second["temperature"]) == ("tiny:work", 8, 0.5)
    assert second["messages"][0] == {"role": "system", "content": "Be brief."}
    drafting.uncheck()
    expect(learning).to_be_disabled()
    assert asked()["draft_length"] == 0
    page.get_by_label("Model").select_option("plain")
    expect(drafting).to_be_disabled()
    assert asked()["model"] == "plain"
    page.reload()
    expect(page.locator("#model")).to_have_value("plain")
    page.get_by_label("Model").select_option("tiny")
    expect(drafting).not_to_be_checked()


def test_text_stays_text_and_code_is_set_apart(tab: Callable[..., Any]) -> None:
    page = ready(tab())
    hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    parts = [hostile, "\n``", "`py", "thon\n", "x = '<b>'", "\n```\n", "**end** ``", "` `"]
    tells(page, piece(parts[0], round=ROUND), *map(piece, parts[1:]))
    ask(page, hostile)
    answer = answered(page)
    assert answer.locator("img, script, b").count() == 0
    assert page.locator(".message.user img").count() == 0
    expect(page.locator(".message.user .said")).to_have_text(hostile)
    texts = answer.locator(".body > *").evaluate_all("all => all.map(each => each.textContent)")
    assert texts == [f"{hostile}\n", "x = '<b>'\n", "**end** ``` `"]
    expect(answer.locator("pre")).to_have_attribute("aria-label", "Code, python")


def test_a_round_is_shown(tab: Callable[..., Any]) -> None:
    page = ready(tab())
    own = {"text": " three", "origin": "corrected"}
    last = {"tokens": [], "parents": [], "accepted": [], "seconds": 0.2}
    end = {"text": ".", "origin": "free", "round": {**last, "plain_tokens_per_second": None}}
    tells(page, piece("One", round=ROUND), piece(" two"), own, end)
    ask(page, "Count")
    answer = answered(page)
    page.get_by_role("button", name="Show rounds").click()
    panel = page.get_by_role("region", name="Round 1 of 2")  # the last that proposed something
    expect(panel).to_be_visible()
    panel.get_by_role("button", name="Next round").click()
    panel = page.get_by_role("region", name="Round 2 of 2")
    expect(panel).to_contain_text("nothing proposed")
    panel.get_by_role("button", name="Previous round").click()
    panel = page.get_by_role("region", name="Round 1 of 2")
    expect(panel).to_contain_text("4 proposed, 2 taken")
    words = panel.locator(".chip").all_text_contents()
    assert words[1:] == [
        *("One, taken", "two, taken, after One", "three, the model’s own, after two"),
        *("six, not taken, after One", "Ten, not taken"),
    ]
    tops = panel.locator(".chip").evaluate_all("all => all.map(e => e.getBoundingClientRect().y)")
    assert len(set(tops[:4])) == 1 and tops[3] < tops[4] < tops[5]
    assert answer.locator(".marked").all_text_contents() == ["One", "two", "three"]
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(page.get_by_role("button", name="Show rounds")).to_be_focused()
    answer.locator(".t", has_text="three").click()
    expect(panel).to_be_visible()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": 429, "headers": {"Retry-After": "7"}}, "Try again in about 7 s"),
        ({"status": 503, "json": {"error": {"message": "the server is ending"}}}, "is ending."),
        ({"status": 400, "json": {"error": {"message": "top_p must be 1"}}}, "top_p must be 1."),
        (None, "cannot be reached"),
    ],
)
def test_a_refusal_is_told_in_words(
    tab: Callable[..., Any], answer: dict[str, Any] | None, words: str
) -> None:
    page = ready(tab(failing=True))
    page.route(CHAT, lambda route: route.fulfill(**answer) if answer else route.abort())
    ask(page, "Hello")
    expect(page.get_by_role("alert").filter(has_text=words)).to_be_visible()
    page.unroute(CHAT)
    tells(page, piece("One", round=ROUND))
    page.get_by_role("button", name="Try again").click()
    expect(answered(page).locator(".body")).to_have_text("One")


def test_a_broken_stream_keeps_what_has_come(tab: Callable[..., Any]) -> None:
    page = ready(tab())
    tells(page, piece("One", round=ROUND), piece(" two"), done=False)
    ask(page, "Count")
    answer = answered(page)
    expect(answer.locator(".note")).to_contain_text("The connection was lost")
    expect(answer.locator(".body")).to_have_text("One two")
    expect(answer.get_by_role("button", name="Copy")).to_be_visible()


def test_a_key_is_asked_for(tab: Callable[..., Any], session: Session) -> None:
    with served({"tiny": session}, ServeOptions(Defaults(temperature=0), key=KEY)) as place:
        page = tab(place=place, failing=True)
        field = page.get_by_label("Key", exact=True)
        expect(field).to_be_focused()
        field.fill("a guess")
        page.keyboard.press("Enter")
        expect(page.locator("#key-said")).to_have_text("The key is missing or wrong.")
        field.fill(KEY)
        page.get_by_role("button", name="Use it").click()
        ready(page)
        expect(field).to_be_hidden()
        limit(page, 4)
        ask(page, "Hello")
        expect(answered(page).locator(".figures")).to_contain_text("4 tokens")
        page.reload()
        ready(page)
        assert page.evaluate("Object.values({...localStorage}).join()") == ""
        assert KEY not in page.url + page.content()
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(tab: Callable[..., Any], scheme: str) -> None:
    page = ready(tab(viewport={"width": 360, "height": 640}, color_scheme=scheme))
    long = {**ROUND, "tokens": ["A-long-token" * 3] * 9, "parents": list(range(-1, 8))}
    wide = "x" * 500
    tells(page, piece(wide, round=long), piece("\n```\n"), piece(wide), piece("\n```\n"))

    def fits() -> None:
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width == 360
        for control in page.locator("button:visible, input:visible, select:visible").all():
            box = control.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= 360

    fits()
    ask(page, wide)
    answered(page)
    fits()
    page.get_by_role("button", name="Show rounds").click()
    fits()
    page.get_by_role("button", name="Settings").click()
    fits()
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Escape")
    light = sum(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) > 380
    assert light == (scheme == "light")
    for _ in range(2 if light else 1):  # the system's, light, dark
        page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_accessible_name(f"Theme: {'dark' if light else 'light'}")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground
    page.reload()
    expect(page.locator("#theme")).to_have_accessible_name(f"Theme: {'dark' if light else 'light'}")


def test_keys_alone(tab: Callable[..., Any]) -> None:
    page = ready(tab())
    tells(page, piece("One", round=ROUND))
    focused = "document.activeElement"

    def name() -> str:
        return page.evaluate(
            f"{focused}.getAttribute('aria-label') || {focused}.innerText.trim() || "
            f"{focused}.title || {focused}.labels?.[0]?.innerText.trim() || {focused}.id"
        )

    def walk(until: str) -> list[str]:
        """Tab on to what has this name."""
        names: list[str] = []
        while not names or names[-1] != until:
            page.keyboard.press("Tab")
            if page.evaluate(f"{focused} === document.body"):
                continue  # around by way of the browser's own controls
            names.append(name())
            assert len(names) < 40, names
            # The field of the message has the composer's frame.
            framed = page.evaluate(
                f"{focused}.id === 'entry' || getComputedStyle({focused}).outlineStyle === 'solid'"
            )
            assert framed, names
        return names

    expect(page.locator("#entry")).to_be_focused()
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    answered(page)
    expect(page.locator(".said")).to_have_text("One\ntwo")
    expect(page.locator("#entry")).to_be_focused()
    walk("Show rounds")
    page.keyboard.press("Enter")
    expect(page.locator("#rounds")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#rounds")).to_be_hidden()
    page.evaluate(f"{focused}.blur()")
    names = walk("Skip to the message field")
    page.keyboard.press("Enter")
    expect(page.locator("#entry")).to_be_focused()
    page.evaluate(f"{focused}.blur()")
    names = walk("Message")
    names = names[names.index("Skip to the message field") :]
    wanted = [
        "New conversation",
        "Settings",
        "Theme: the system’s",
        "Copy",
        "Answer again",
        "Rounds",
    ]
    assert [each for each in names if each in wanted] == wanted
    # Whatever can be used has a name.
    for control in page.locator("button, input, select, textarea").all():
        words = control.evaluate(
            "e => e.ariaLabel || e.textContent.trim() || e.title || "
            "e.labels?.[0]?.textContent.trim() || ''"
        )
        assert words.strip(), control.evaluate("e => e.outerHTML")
