// The page: a conversation, what it is asked with, and where its answers come from.

import { Refusal, listModels, stream } from "./api.js";
import { AnswerMessage, button, telling, userMessage, wordsOf } from "./messages.js";
import { Meter } from "./meter.js";
import { RoundsPanel } from "./panel.js";
import { Settings } from "./settings.js";

const $ = (id) => document.getElementById(id);
const KEPT = "omnidraft.conversation";
const KEY = "omnidraft.key";

const entry = $("entry");
const list = $("messages");
const meter = new Meter();
const rounds = new RoundsPanel();
const settings = new Settings();

let said = []; // { user } and { answer }, in turns
let shown = []; // their elements: of an answer the AnswerMessage
let running = null; // an AbortController while an answer comes
let key = keep(KEY);

// --- what this tab keeps -------------------------------------------------------------------------

function keep(name, value) {
  try {
    if (value === undefined) return sessionStorage.getItem(name);
    sessionStorage.setItem(name, value);
  } catch {
    // Storage is full or switched off: the conversation lives until the page is left.
  }
  return null;
}

function keepConversation() {
  keep(KEPT, JSON.stringify(said));
}

function recall() {
  try {
    said = JSON.parse(keep(KEPT)) ?? [];
  } catch {
    said = [];
  }
  const last = said.at(-1)?.answer;
  if (last && !last.ended) {
    last.ended = "failed";
    last.said = "The page was left before the answer ended.";
  }
  for (const each of said) show(each);
  if (last) {
    meter.ended(last);
    rounds.show(shown.at(-1));
  }
}

// --- the conversation ----------------------------------------------------------------------------

function show(each) {
  const made = each.answer ? new AnswerMessage(each.answer, actions) : userMessage(each.user);
  shown.push(made);
  list.append(made.item ?? made);
  $("empty").hidden = true;
  return made;
}

function actions(message) {
  const made = [];
  if (message.answer.pieces.length) made.push(button("Copy", (event) => copy(message, event)));
  const word = message.answer.ended === "failed" ? "Try again" : "Answer again";
  const again = button(word, answerAgain);
  again.classList.add("again");
  made.push(again);
  if (message.answer.rounds.length) {
    made.push(button("Rounds", () => rounds.open(message, telling(message.answer))));
  }
  return made;
}

async function copy(message, event) {
  const pressed = event.currentTarget;
  try {
    await navigator.clipboard.writeText(message.words);
    pressed.textContent = "Copied";
  } catch {
    pressed.textContent = "The browser does not let it be copied";
  }
  announce(pressed.textContent);
  setTimeout(() => (pressed.textContent = "Copy"), 2000);
}

/** The messages to be answered; what was never answered is left out. */
function conversation() {
  const messages = settings.system ? [{ role: "system", content: settings.system }] : [];
  said.forEach((each, place) => {
    if (each.user === undefined) return;
    const words = said[place + 1] ? wordsOf(said[place + 1].answer) : "";
    if (place === said.length - 1) messages.push({ role: "user", content: each.user });
    else if (words) {
      messages.push({ role: "user", content: each.user }, { role: "assistant", content: words });
    }
  });
  return messages;
}

function send() {
  const text = entry.value.trim();
  if (!text || running || !settings.model) return;
  entry.value = "";
  typed();
  const each = { user: text };
  said.push(each);
  show(each);
  follow(true);
  answer();
}

function answerAgain() {
  if (running || !said.at(-1)?.answer) return;
  said.pop();
  shown.pop().item.remove();
  answer();
}

async function answer() {
  const messages = conversation();
  const own = {
    model: settings.model,
    pieces: [],
    rounds: [],
    figures: null,
    ended: "",
    said: "",
    drafts: settings.drafts,
  };
  const each = { answer: own };
  said.push(each);
  const message = show(each);
  keepConversation();
  const abort = new AbortController();
  run(abort);
  message.wait("Waiting for its turn …");
  meter.begin();
  rounds.begin(message);
  follow(true);
  announce("Answering");
  try {
    const asked = { messages, ...settings.asked() };
    const begun = () => message.wait("Reading …");
    for await (const chunk of stream(asked, key, abort.signal, begun)) take(message, chunk);
    own.ended ||= "stop";
  } catch (error) {
    if (abort.signal.aborted) own.ended = "stopped";
    else fail(own, error);
  }
  run(null);
  if (said.at(-1) !== each) return; // a new conversation has begun
  message.end();
  meter.ended(own);
  rounds.update(message);
  keepConversation();
  follow();
  if (own.ended !== "failed") announce(`Answer: ${message.words}`);
}

function take(message, chunk) {
  const { answer: own } = message;
  const { pieces = [], figures } = chunk.omnidraft ?? {};
  if (pieces.length && !own.pieces.length) message.wait("");
  for (const piece of pieces) {
    message.push(piece);
    if (piece.round) {
      meter.round(own);
      rounds.update(message);
    }
  }
  if (pieces.length) rounds.grew(message);
  if (figures) {
    own.figures = figures;
    own.ended = chunk.choices[0].finish_reason === "length" ? "length" : "stop";
  }
  follow();
}

function fail(own, error) {
  own.ended = "failed";
  if (!(error instanceof Refusal)) console.error(error);
  own.said = error instanceof Refusal ? error.message : "The page failed: reload it.";
  if (error.status === 401) lock(error.message);
  if (error.code === "model_not_found") loadModels();
}

function run(abort) {
  running = abort;
  document.body.classList.toggle("running", abort !== null);
  const focused = document.activeElement === $("stop") || document.activeElement === $("send");
  $("stop").hidden = abort === null;
  $("send").hidden = abort !== null;
  if (focused) (abort === null ? entry : $("stop")).focus();
  settings.lock(abort !== null);
}

function stop() {
  running?.abort();
}

function startAnew() {
  stop();
  said = [];
  shown = [];
  list.replaceChildren();
  $("empty").hidden = false;
  meter.hide();
  rounds.close();
  rounds.show(null);
  keepConversation();
  announce("A new conversation");
  entry.focus();
}

// --- the server ----------------------------------------------------------------------------------

async function loadModels() {
  try {
    settings.take(await listModels(key));
    if (!$("locked").hidden) {
      $("locked").hidden = true;
      entry.focus();
    }
    trouble("");
  } catch (error) {
    if (error.status === 401) lock(key === null ? "" : error.message);
    else trouble(error.message);
  }
  typed();
}

function lock(words) {
  $("locked").hidden = false;
  $("key-said").textContent = words;
  $("key").focus();
}

function trouble(words) {
  $("trouble").hidden = words === "";
  $("trouble-said").textContent = words;
}

// --- small things --------------------------------------------------------------------------------

function announce(words) {
  $("announcer").textContent = words;
}

let near = true; // whether the end of the conversation is in sight
addEventListener("scroll", () => {
  near = innerHeight + scrollY > document.documentElement.scrollHeight - 80;
});

function follow(always = false) {
  if (always) near = true;
  if (near) scrollTo(0, document.documentElement.scrollHeight);
}

new ResizeObserver(() => follow()).observe(document.querySelector(".dock"));

function typed() {
  entry.style.height = "auto";
  entry.style.height = `${entry.scrollHeight}px`;
  $("send").disabled = !entry.value.trim() || !settings.model;
}

entry.addEventListener("input", typed);
entry.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", startAnew);
$("retry").addEventListener("click", loadModels);
$("examples").addEventListener("click", ({ target }) => {
  if (!(target instanceof HTMLButtonElement)) return;
  entry.value = target.textContent;
  typed();
  send();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value.trim();
  $("key").value = "";
  keep(KEY, key);
  loadModels();
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || $("settings").open) return;
  if (running) stop();
  else rounds.close();
});
list.addEventListener("click", ({ target }) => {
  const round = target.closest?.(".t")?.dataset.round;
  if (round === undefined || String(getSelection())) return;
  const at = [...list.children].indexOf(target.closest("li.message"));
  rounds.open(shown[at], Number(round));
});
$("show-rounds").addEventListener("click", () => rounds.toggle());
addEventListener("pagehide", keepConversation);

const NEXT = { "": "light", light: "dark", dark: "" };
const NAMES = { "": "the system’s", light: "light", dark: "dark" };
function nameTheme() {
  const words = `Theme: ${NAMES[document.documentElement.dataset.theme ?? ""]}`;
  $("theme").title = words;
  $("theme").setAttribute("aria-label", words);
}
$("theme").addEventListener("click", () => {
  const next = NEXT[document.documentElement.dataset.theme ?? ""];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem("omnidraft.theme", next);
  } catch {
    // It holds until the page is left.
  }
  nameTheme();
});

nameTheme();
recall();
typed();
await loadModels();
if (matchMedia("(hover: hover)").matches && $("locked").hidden) entry.focus();
