// What is said, as it stands in the conversation on the page.

import { AnswerText } from "./answer.js";

/** A button with a word on it. */
export function button(word, does) {
  const made = element("button", "quiet", word);
  made.type = "button";
  made.addEventListener("click", does);
  return made;
}

export function element(name, kind, text = "") {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text) made.textContent = text;
  return made;
}

/** What a person said. */
export function userMessage(text) {
  const item = element("li", "message user");
  item.append(element("h3", "unseen", "You"), element("p", "said", text));
  return item;
}

/**
 * A message of the model's, which grows.
 *
 * Its `answer` is what is kept of it: model, pieces (each a text, an origin and the number of a
 * round), rounds, figures, ended ("", "stop", "length", "stopped" or "failed") and said, the words
 * of a failure.
 */
export class AnswerMessage {
  constructor(answer, actions) {
    this.answer = answer;
    this.item = element("li", "message answer");
    this.body = element("div", "body");
    this.note = element("p", "note");
    this.note.hidden = true;
    this.foot = element("div", "foot");
    this.foot.hidden = true;
    this.item.append(element("h3", "by", answer.model), this.body, this.note, this.foot);
    this.actions = actions;
    this.text = new AnswerText(this.body);
    for (const [text, origin, round] of answer.pieces) this.text.push(text, origin, round);
    if (answer.ended) this.end();
    else this.body.setAttribute("aria-busy", "true");
  }

  get words() {
    return wordsOf(this.answer);
  }

  /** A token came; the server tells it with the round that it begins. */
  push({ text, origin, round }) {
    const { pieces, rounds } = this.answer;
    if (round) rounds.push({ ...round, from: pieces.length });
    pieces.push([text, origin, rounds.length - 1]);
    this.text.push(text, origin, rounds.length - 1);
  }

  /** What is waited for. */
  wait(words) {
    this.item.classList.toggle("waits", words !== "");
    this.note.textContent = words;
    this.note.hidden = words === "";
  }

  /** It has ended, as `answer.ended` and `answer.said` say. */
  end() {
    const { answer } = this;
    this.text.finish();
    this.body.removeAttribute("aria-busy");
    this.item.classList.remove("waits");
    this.item.classList.toggle("failed", answer.ended === "failed");
    const said = {
      stop: "",
      length: "Cut here: it reached the most tokens that were allowed.",
      stopped: answer.pieces.length ? "Stopped." : "Stopped before anything came.",
      failed: answer.said,
    }[answer.ended];
    if (answer.ended === "failed") this.note.setAttribute("role", "alert");
    this.note.textContent = said;
    this.note.hidden = !said;
    this.foot.replaceChildren(...this.actions(this), element("span", "figures", figuresOf(answer)));
    this.foot.hidden = false;
  }

  /** Show which tokens came of a round; null: of none. */
  mark(round) {
    for (const each of this.body.querySelectorAll(".marked")) each.classList.remove("marked");
    if (round === null) return;
    for (const each of this.body.querySelectorAll(`[data-round="${round}"]`)) {
      each.classList.add("marked");
    }
  }
}

export function wordsOf(answer) {
  return answer.pieces.map(([text]) => text).join("");
}

/** The last round that proposed something, or else the last one. */
export function telling({ rounds }) {
  const found = rounds.findLastIndex(({ tokens }) => tokens.length > 0);
  return found < 0 ? rounds.length - 1 : found;
}

/** What a round made: its tokens, those that stood and the model's own. */
export function madeOf(answer, round) {
  const from = answer.rounds[round].from;
  const to = answer.rounds[round + 1]?.from ?? answer.pieces.length;
  return answer.pieces.slice(from, to).map(([text, origin]) => ({ text, origin }));
}

function figuresOf({ figures }) {
  if (!figures) return "";
  const { tokens, tokens_per_second: speed, tokens_per_round: round } = figures;
  return `${tokens} tokens · ${speed.toFixed(1)} a second · ${round.toFixed(2)} a round`;
}
