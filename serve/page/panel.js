// The panel that shows one round: what it proposed, and what stood of it.

import { madeOf, telling } from "./messages.js";
import { draw } from "./rounds.js";

const $ = (id) => document.getElementById(id);
const BEFORE = 18; // characters of the text before a round

export class RoundsPanel {
  #message = null;
  #round = -1;
  #follows = true; // the round under way

  constructor() {
    $("round-back").addEventListener("click", () => this.#step(-1));
    $("round-on").addEventListener("click", () => this.#step(1));
    $("round-close").addEventListener("click", () => this.close());
  }

  get isOpen() {
    return !$("rounds").hidden;
  }

  /** An answer begins: its rounds are followed. */
  begin(message) {
    this.show(message);
  }

  /** Choose the answer whose rounds are shown; null: none. */
  show(message) {
    this.#unmark();
    this.#message = message;
    this.#round = message ? telling(message.answer) : -1;
    this.#follows = this.#round === (message?.answer.rounds.length ?? 0) - 1;
    this.#draw();
  }

  /** Open it on a round of an answer. */
  open(message, round) {
    this.#unmark();
    this.#message = message;
    this.#round = round;
    this.#follows = round === message.answer.rounds.length - 1;
    this.#turn(true);
  }

  toggle() {
    if (!this.isOpen && this.#message?.answer.ended) this.show(this.#message);
    this.#turn(!this.isOpen);
  }

  close() {
    if (this.isOpen) this.#turn(false);
  }

  /** The answer has another round, or has ended. */
  update(message) {
    if (message !== this.#message) return;
    if (this.#follows) this.#round = message.answer.rounds.length - 1;
    this.#draw();
  }

  /** The round under way has made another token. */
  grew(message) {
    if (message === this.#message && this.#follows) this.#draw();
  }

  #step(by) {
    this.#round += by;
    this.#follows = this.#round === this.#message.answer.rounds.length - 1;
    this.#draw();
    // A button that can go no further loses the focus.
    if ($(by < 0 ? "round-back" : "round-on").disabled) $("round-title").focus();
    $("announcer").textContent = `${$("round-title").textContent}: ${$("round-said").textContent}`;
  }

  #turn(open) {
    if (!open && $("rounds").contains(document.activeElement)) $("show-rounds").focus();
    $("rounds").hidden = !open;
    $("show-rounds").setAttribute("aria-expanded", String(open));
    if (open) this.#draw();
    else this.#unmark();
  }

  #unmark() {
    this.#message?.mark?.(null);
  }

  #draw() {
    if (!this.isOpen) return;
    const answer = this.#message?.answer;
    const count = answer?.rounds.length ?? 0;
    $("round-back").disabled = this.#round < 1;
    $("round-on").disabled = this.#round >= count - 1;
    const round = answer?.rounds[this.#round];
    if (!round) {
      $("round-title").textContent = "Rounds";
      $("round-said").textContent = "Each round of an answer shows here what it proposed.";
      $("tree").replaceChildren();
      return;
    }
    const made = madeOf(answer, this.#round);
    const text = answer.pieces.slice(Math.max(0, round.from - 12), round.from).map(([t]) => t);
    $("round-title").textContent = `Round ${this.#round + 1} of ${count}`;
    $("round-said").textContent = words(round);
    const before = text.length ? `…${text.join("").slice(-BEFORE)}` : "beginning";
    draw($("tree"), round, made, before);
    this.#message.mark(this.#round);
  }
}

function words({ tokens, accepted }) {
  if (!tokens.length) return "nothing proposed: plain decoding";
  return `${tokens.length} proposed, ${accepted.length} taken`;
}
