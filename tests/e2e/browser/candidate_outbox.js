/**
 * The candidates of one round on their way to the gateway (RFC 8838): what was found before the offer is taken leaves
 * as one message, in order; what is found later, at once, one message at a time. Depends on nothing.
 */

/** As many as one message may hold. */
const MOST = 64;

export class CandidateOutbox {
  #send;
  /** @type {string[]} */
  #found = [];
  #hasEnded = false;
  #owesEnd = false;
  #isOpen = false;
  #isSending = false;

  /**
   * @param {(candidates: string[], ended: boolean) => Promise<unknown>} send Resolves when the message is taken.
   */
  constructor(send) {
    this.#send = send;
  }

  /** @param {string} candidate */
  add(candidate) {
    if (!this.#hasEnded) this.#found.push(candidate);
    this.#flush();
  }

  /** Say that no more will be found. */
  end() {
    if (this.#hasEnded) return;
    this.#hasEnded = this.#owesEnd = true;
    this.#flush();
  }

  /** Begin to send: the offer is taken. */
  open() {
    this.#isOpen = true;
    this.#flush();
  }

  /** Send nothing more: the path is up, or another round has begun. */
  close() {
    this.#found = [];
    this.#hasEnded = true;
    this.#owesEnd = false;
  }

  async #flush() {
    if (!this.#isOpen || this.#isSending) return;
    this.#isSending = true;
    try {
      while (this.#found.length > 0 || this.#owesEnd) {
        const batch = this.#found.splice(0, MOST);
        const ends = this.#owesEnd && this.#found.length === 0;
        if (ends) this.#owesEnd = false;
        await this.#send(batch, ends);
      }
    } catch {
      this.close(); // The others may do; when none does, the connection fails and says so.
    } finally {
      this.#isSending = false;
    }
  }
}
