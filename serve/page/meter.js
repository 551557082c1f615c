// How fast an answer comes, beside plain decoding.

const $ = (id) => document.getElementById(id);

export class Meter {
  hide() {
    $("meter").hidden = true;
  }

  begin() {
    this.#show(null, null, null, "");
  }

  /** A round of the answer has begun: it tells the time so far, and what it will have made. */
  round({ rounds, drafts }) {
    const { from, accepted, seconds, plain_tokens_per_second: plain } = rounds.at(-1);
    const tokens = from + accepted.length + 1;
    this.#show(tokens / seconds, tokens / rounds.length, drafts ? plain : tokens / seconds, drafts);
  }

  /** An answer has ended. */
  ended(answer) {
    const { figures } = answer;
    if (figures) {
      this.#show(
        figures.tokens_per_second,
        figures.tokens_per_round,
        figures.plain_tokens_per_second,
        answer.drafts,
      );
    } else if (answer.rounds.length) this.round(answer);
    else this.hide();
  }

  #show(speed, round, plain, drafts) {
    $("meter").hidden = false;
    const most = Math.max(speed ?? 0, plain ?? 0) || 1;
    $("own-speed").textContent = speed === null ? "–" : speed.toFixed(1);
    $("own-round").textContent = round === null ? "–" : round.toFixed(2);
    $("own-bar").style.width = `${(100 * (speed ?? 0)) / most}%`;
    $("plain-bar").style.width = `${(100 * (plain ?? 0)) / most}%`;
    const about = drafts && plain !== null ? "≈ " : "";
    $("plain-speed").textContent = plain === null ? "–" : `${about}${plain.toFixed(1)}`;
    $("meter-said").textContent = words(speed, plain, drafts);
  }
}

function words(speed, plain, drafts) {
  if (speed === null) return "";
  if (!drafts) return "Drafting is off: this is plain decoding, as it was measured.";
  if (plain === null) {
    return "Plain decoding was not measured here: switch drafting off for an answer.";
  }
  return "≈ estimated from what passes over one token cost here.";
}
