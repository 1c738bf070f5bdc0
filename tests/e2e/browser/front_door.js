/** The front door over REST and WebSocket, called with a key. Depends on nothing. */

/** Before each repetition of a call that may pass the next time. */
const PAUSES = [250, 500, 1000, 2000];

/** What the front door refused: its problem document (RFC 9457). */
export class Refused extends Error {
  /**
   * @param {number} status
   * @param {{reason?: string, detail?: string, remedy?: string}} problem Empty when a proxy refused.
   */
  constructor(status, problem) {
    super(problem.detail ?? `The front door answered ${status}.`);
    this.name = "Refused";
    this.status = status;
    this.reason = problem.reason ?? "";
    this.remedy = problem.remedy ?? "";
  }
}

/** Calls repeat themselves for some seconds where that may help; none is done twice. */
export class FrontDoor {
  #url;
  #key;

  /**
   * @param {string} url Where it is: the page's own origin, since it allows no other one.
   * @param {string} key
   */
  constructor(url, key) {
    this.#url = url;
    this.#key = key;
  }

  /**
   * Call it; throws Refused, or TypeError when it cannot be reached.
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   */
  async call(method, path, body) {
    const request = {
      method,
      headers: {
        Authorization: `Bearer ${this.#key}`,
        "Content-Type": "application/json",
        "Idempotency-Key": crypto.randomUUID(),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    };
    for (const pause of PAUSES) {
      try {
        return await this.#once(path, request);
      } catch (error) {
        if (error instanceof Refused && error.status !== 503) throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
    return this.#once(path, request);
  }

  /**
   * Open a WebSocket. A browser sends no headers with it, so the key goes as a second subprotocol, never in the URL.
   * @param {string} path
   * @param {string} protocol
   */
  socket(path, protocol) {
    const url = new URL(path, this.#url);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    return new WebSocket(url, [protocol, `fairlead.key.${this.#key}`]);
  }

  /**
   * @param {string} path
   * @param {RequestInit} request
   */
  async #once(path, request) {
    const answer = await fetch(new URL(path, this.#url), request);
    if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
    return answer.json();
  }
}
