// The server's interface: models, and an answer as it comes.

/** Why there is no answer, or no more of it. */
export class Refusal extends Error {
  /**
   * @param {number} status of HTTP; 0: the server was not reached, or went away.
   * @param {string} message what was wrong, and what to do.
   * @param {string | null} code the server's word for it.
   */
  constructor(status, message, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The models, as /v1/models lists them. */
export async function listModels(key) {
  const response = await request("/v1/models", { headers: headers(key) });
  return (await response.json()).data;
}

/**
 * The chunks of an answer.
 *
 * @param {object} asked the request, without what makes it a stream.
 * @param {AbortSignal} signal ends it: the server is then free within a round.
 * @param {() => void} begun called when its turn has come.
 */
export async function* stream(asked, key, signal, begun) {
  const body = JSON.stringify({
    ...asked,
    stream: true,
    stream_options: { include_drafting: true },
  });
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body,
    signal,
  });
  begun();
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Refusal(503, chunk.error.message, chunk.error.code);
    yield chunk;
  }
  throw lost();
}

async function* events(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  try {
    for (;;) {
      const part = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : lost();
      });
      if (part.done) return;
      held += decoder.decode(part.value, { stream: true });
      const whole = held.split("\n\n");
      held = whole.pop();
      for (const event of whole) {
        if (event.startsWith("data: ")) yield event.slice(6);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever stops listening lets the server go
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, cache: "no-store", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server cannot be reached. Is omnidraft serve still running?");
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  const error = said?.error ?? {};
  throw new Refusal(response.status, words(response, error), error.code ?? null);
}

function words(response, error) {
  const message = sentence(error.message ?? `it said ${response.status}`);
  if (error.code === "context_length_exceeded") {
    return `The conversation is too long for the model. ${message} Or begin a new conversation.`;
  }
  if (response.status === 429) {
    const wait = Number(response.headers.get("Retry-After"));
    return wait
      ? `The server is busy: others wait already. Try again in about ${wait} s.`
      : `The server is busy. ${message}`;
  }
  if (response.status === 401) return "The key is missing or wrong.";
  if (response.status >= 500) return `The server could not answer. ${message}`;
  return `The server did not take this. ${message}`;
}

function lost() {
  return new Refusal(0, "The connection was lost. What had come is kept.");
}

function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}
