// What answers are asked with: the model, and how it decodes. A tab keeps it until it is closed.

const $ = (id) => document.getElementById(id);
const KEPT = "omnidraft.settings";
const FIELDS = ["system", "temperature", "max-tokens", "draft-length"];

export class Settings {
  #models = [];
  #wanted = null; // the model that was chosen last
  #running = false;
  #drafting = true; // what is wanted; a model without a drafter has its switch off

  constructor() {
    this.#recall();
    for (const id of [...FIELDS, "colours"]) {
      $(id).addEventListener("change", () => this.#changed());
    }
    $("drafting").addEventListener("change", () => {
      this.#drafting = $("drafting").checked;
      this.#changed();
    });
    $("model").addEventListener("change", () => {
      this.#wanted = $("model").value;
      this.#changed();
    });
    $("learning").addEventListener("change", () => {
      const other = this.#other();
      if (other) this.#wanted = other.id;
      this.#changed();
    });
    $("open-settings").addEventListener("click", () => $("settings").showModal());
    $("settings").addEventListener("click", (event) => {
      if (event.target === $("settings")) $("settings").close(); // beside it
    });
  }

  /** The model's name; "" while there is none. */
  get model() {
    return this.#chosen?.id ?? "";
  }

  get system() {
    return $("system").value.trim();
  }

  /** Whether answers are drafted. */
  get drafts() {
    return Boolean(this.#chosen?.omnidraft.drafter) && this.#drafting;
  }

  /** The fields of a request that are chosen here. */
  asked() {
    const asked = { model: this.model };
    const [temperature, most] = [$("temperature"), $("max-tokens")].map((e) => e.valueAsNumber);
    if (!Number.isNaN(temperature)) asked.temperature = temperature;
    if (!Number.isNaN(most)) asked.max_tokens = most;
    const length = $("draft-length").value;
    if (!this.drafts) asked.draft_length = 0;
    else if (length) asked.draft_length = length === "auto" ? length : Number(length);
    return asked;
  }

  /** Offer these models. */
  take(models) {
    this.#models = models;
    $("model").replaceChildren(...models.map(({ id }) => new Option(id)));
    this.#changed();
  }

  /** While an answer comes nothing is chosen that would not be of that answer. */
  lock(running) {
    this.#running = running;
    this.#changed();
  }

  get #chosen() {
    return this.#models.find(({ id }) => id === this.#wanted) ?? this.#models[0];
  }

  /** The same target's model that learns, or the one that does not. */
  #other() {
    const own = this.#chosen?.omnidraft;
    return this.#models.find(({ omnidraft: each }) => {
      const fits = own?.learns ? !each.adapter : each.learns;
      return fits && each.target === own?.target;
    });
  }

  #changed() {
    const chosen = this.#chosen;
    const told = chosen?.omnidraft;
    $("model").disabled = this.#running || !chosen;
    if (chosen) $("model").value = chosen.id;
    $("drafting").disabled = this.#running || !told?.drafter;
    $("drafting").checked = told ? this.drafts : this.#drafting;
    const learns = Boolean(told?.learns);
    $("learning").checked = learns && this.drafts;
    $("learning").disabled = this.#running || !this.drafts || !this.#other();
    document.body.classList.toggle("colourless", !$("colours").checked);
    const plain = told && !told.drafter;
    $("drafting-label").title = plain ? "The server was begun without a drafter." : "";
    const [learning, options] = told ? this.#learning(told) : ["–"];
    $("learning-said").textContent = learning;
    $("learning-label").title = learning;
    if (options) {
      const code = document.createElement("code");
      code.textContent = options;
      $("learning-said").append(" The server learns if it is begun with ", code, ".");
      $("learning-label").title = $("learning-said").textContent;
    }
    $("fact-target").textContent = told?.target ?? "–";
    $("fact-drafter").textContent = told?.drafter ?? "None: plain decoding.";
    $("fact-adapter").textContent = told?.adapter ?? "None";
    this.#keep();
  }

  #learning(told) {
    if (!told.drafter) return ["Nothing is drafted, and so nothing is learned."];
    if (!this.#drafting) return ["Off while drafting is off."];
    if (told.learns) return [`On: the adapter ${told.adapter} learns from these answers.`];
    if (this.#other()) return ["Off: nothing is learned from these answers."];
    const off = told.adapter ? "Off: the adapter stays as it is." : "Off.";
    return [off, "--adapter NAME --learn"];
  }

  #keep() {
    const kept = { model: this.#wanted, drafting: this.#drafting, colours: $("colours").checked };
    for (const id of FIELDS) kept[id] = $(id).value;
    try {
      sessionStorage.setItem(KEPT, JSON.stringify(kept));
    } catch {
      // They hold until the page is left.
    }
  }

  #recall() {
    let kept = null;
    try {
      kept = JSON.parse(sessionStorage.getItem(KEPT));
    } catch {
      // As if there were none.
    }
    // A browser may fill in what a field held before a reload; what is kept counts.
    for (const id of FIELDS) $(id).value = kept?.[id] ?? "";
    this.#drafting = kept?.drafting ?? true;
    $("colours").checked = kept?.colours ?? true;
    this.#wanted = kept?.model ?? null;
  }
}
