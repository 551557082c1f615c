// An answer's text on the page: a span for each token, in the colour of its origin, and blocks of
// code between fences. Nothing of it is ever read as HTML.

const FENCE = /^ {0,3}```/;
const MAYBE_FENCE = /^ {0,3}(`{0,2}|```[^`]*)$/;
const CLOSING = /^ {0,3}```\s*$/;

export class AnswerText {
  /** @param {HTMLElement} body where the text goes. */
  constructor(body) {
    this.body = body;
    this.block = null;
    this.code = false;
    // The line so far while it may be a fence, and what is held back of it; null: it is none.
    this.line = "";
    this.held = [];
  }

  /** Add a token's text. */
  push(text, origin, round) {
    for (const part of text.split(/(?<=\n)/)) {
      if (part) this.#part({ text: part, origin, round });
    }
  }

  /** The answer has ended: what is held back is text. */
  finish() {
    if (this.held.length && !(this.code ? CLOSING : FENCE).test(this.line)) this.#release();
    this.held = [];
    this.line = "";
  }

  #part(piece) {
    const ends = piece.text.endsWith("\n");
    if (this.line === null) {
      this.#show(piece);
    } else {
      this.line += piece.text;
      this.held.push(piece);
      const line = this.line.replace(/\n$/, "");
      if (!MAYBE_FENCE.test(line)) {
        this.#release();
        this.line = null;
      } else if (ends) {
        if ((this.code ? CLOSING : FENCE).test(line)) this.#turn(line);
        else this.#release();
        this.held = [];
      }
    }
    if (ends) this.line = "";
  }

  #turn(line) {
    this.code = !this.code;
    this.block = null;
    if (!this.code) return;
    const frame = document.createElement("pre");
    frame.tabIndex = 0; // so that it can be scrolled by keys
    const language = line.replace(FENCE, "").trim();
    frame.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
    if (language) frame.dataset.language = language;
    this.block = document.createElement("code");
    frame.append(this.block);
    this.body.append(frame);
  }

  #release() {
    for (const piece of this.held) this.#show(piece);
    this.held = [];
  }

  #show(piece) {
    if (this.block === null) {
      this.block = document.createElement("div");
      this.block.className = "text";
      this.body.append(this.block);
    }
    // Space before a word stays without a line, so that neighbours can be told apart.
    const words = piece.text.trimStart();
    this.block.append(piece.text.slice(0, piece.text.length - words.length));
    if (!words) return;
    const span = document.createElement("span");
    span.className = `t ${piece.origin}`;
    span.dataset.round = piece.round;
    span.textContent = words;
    this.block.append(span);
  }
}
