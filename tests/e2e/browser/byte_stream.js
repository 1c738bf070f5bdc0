/**
 * One TCP connection to a port of a sandbox, over one data channel: the opener's side of `fairlead.bytes.v1`
 * (docs/protocol.md) as a pair of streams (WHATWG Streams). Depends on nothing.
 */

export const PROTOCOL = "fairlead.bytes.v1";

const WINDOW = 1024 * 1024;
const MOST_CREDIT = 16 * WINDOW;
const MOST_MESSAGE = 65536;
/** Bytes that may wait in the browser itself: it ends a channel with too many of them. */
const MOST_BUFFERED = 4 * WINDOW;
const CREDIT = /^credit ([1-9][0-9]{0,8})$/;
const REASON = /^[a-z][a-z0-9_]{0,63}$/;

/** The stream ended before it was complete; `reason` is machine-readable, docs/protocol.md has the table. */
export class StreamReset extends Error {
  /**
   * @param {string} reason
   * @param {string} message
   */
  constructor(reason, message) {
    super(message);
    this.name = "StreamReset";
    this.reason = reason;
  }
}

/** Read `readable`, write `writable`, close or abort them as any other; both are errored by a reset. */
export class ByteStream {
  #channel;
  #isOpen;
  #isReady = false;
  #hasSentEof = false;
  #peerHasSentEof = false;
  #credit = WINDOW;
  #granted = WINDOW;
  #consumed = 0;
  /** @type {Uint8Array[]} */
  #arrived = [];
  /** @type {StreamReset | null} */
  #over = null;
  /** @type {Set<() => void>} */
  #waiting = new Set();
  /** @type {PromiseWithResolvers<void>} */
  #ready = promise();
  /** @type {PromiseWithResolvers<void>} */
  #closed = promise();

  /** @param {RTCDataChannel} channel A fresh one, ordered and reliable, of this protocol. */
  constructor(channel) {
    this.#channel = channel;
    this.#isOpen = channel.readyState === "open";
    channel.binaryType = "arraybuffer";
    channel.bufferedAmountLowThreshold = MOST_BUFFERED / 2;
    channel.onopen = () => {
      this.#isOpen = true;
      this.#wake();
    };
    channel.onbufferedamountlow = () => this.#wake();
    channel.onmessage = (event) => this.#receive(event.data);
    channel.onclose = () => {
      if (!this.isComplete) this.#end(new StreamReset("channel_lost", "The data channel was closed too early."));
    };

    /** Bytes from the port; ends with the peer's `eof`. What is not read is not granted again. */
    this.readable = new ReadableStream(
      {
        pull: (controller) => this.#pull(controller),
        cancel: () => this.reset("stream_cancelled", "The reader wants no more."),
      },
      { highWaterMark: 0 },
    );
    /** Bytes to the port; closing it says `eof`, and the other direction goes on. */
    this.writable = new WritableStream(
      {
        write: (chunk) => this.#write(chunk),
        close: () => this.#finish(),
        abort: () => this.reset("stream_aborted", "The writer gave up."),
      },
      { highWaterMark: 1 },
    );
  }

  /** Resolves when the port is connected; rejects with StreamReset. Writing need not wait for it. */
  get ready() {
    return this.#ready.promise;
  }

  /** Resolves when both sides have said `eof`; rejects with StreamReset. */
  get closed() {
    return this.#closed.promise;
  }

  /** Whether both sides have said `eof` and nothing went wrong. */
  get isComplete() {
    return this.#hasSentEof && this.#peerHasSentEof && this.#over === null;
  }

  /**
   * End both directions at once and tell the peer; nothing happens once it is over.
   * @param {string} reason Lower snake case.
   * @param {string} message A sentence.
   */
  reset(reason, message) {
    if (this.#over || this.isComplete) return;
    const text = `reset ${JSON.stringify({ reason, message: message.slice(0, 256) })}`;
    if (this.#channel.readyState === "open") this.#channel.send(text);
    this.#end(new StreamReset(reason, message));
  }

  /** @param {ReadableStreamDefaultController<Uint8Array>} controller */
  async #pull(controller) {
    await this.#until(() => this.#arrived.length > 0 || this.#peerHasSentEof);
    const next = this.#arrived.shift();
    if (next === undefined) {
      controller.close();
      return;
    }
    controller.enqueue(next);
    this.#consumed += next.byteLength;
    if (this.#consumed >= WINDOW / 4 && !this.#peerHasSentEof) {
      this.#channel.send(`credit ${this.#consumed}`);
      this.#granted += this.#consumed;
      this.#consumed = 0;
    }
  }

  /** @param {BufferSource} chunk */
  async #write(chunk) {
    const bytes = ArrayBuffer.isView(chunk)
      ? new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.byteLength)
      : new Uint8Array(chunk);
    for (let sent = 0; sent < bytes.byteLength; ) {
      await this.#until(() => this.#isOpen && this.#credit > 0 && this.#channel.bufferedAmount < MOST_BUFFERED);
      const piece = bytes.subarray(sent, sent + Math.min(this.#credit, MOST_MESSAGE));
      this.#channel.send(piece);
      this.#credit -= piece.byteLength;
      sent += piece.byteLength;
    }
  }

  async #finish() {
    await this.#until(() => this.#isOpen);
    this.#channel.send("eof");
    this.#hasSentEof = true;
    this.#closeWhenComplete();
  }

  /** @param {string | ArrayBuffer} message */
  #receive(message) {
    if (this.#over) return;
    const fault = typeof message === "string" ? this.#take(message) : this.#takeBytes(new Uint8Array(message));
    if (fault) this.reset("protocol_error", fault);
    this.#wake();
  }

  /**
   * @param {Uint8Array} bytes
   * @returns {string} What is wrong with them, or nothing.
   */
  #takeBytes(bytes) {
    if (!this.#isReady || this.#peerHasSentEof) return "Bytes were received before `ready` or after `eof`.";
    if (bytes.byteLength < 1 || bytes.byteLength > MOST_MESSAGE) return "A binary message has 1 to 65536 bytes.";
    if (bytes.byteLength > this.#granted) return "More bytes were received than were granted.";
    this.#granted -= bytes.byteLength;
    this.#arrived.push(bytes);
    return "";
  }

  /**
   * @param {string} text
   * @returns {string} What is wrong with it, or nothing.
   */
  #take(text) {
    const credit = CREDIT.exec(text);
    if (credit) {
      if (this.#credit + Number(credit[1]) > MOST_CREDIT) return "More credit was granted than 16 MiB.";
      this.#credit += Number(credit[1]);
    } else if (text === "ready") {
      if (this.#isReady) return "`ready` was not expected.";
      this.#isReady = true;
      this.#ready.resolve();
    } else if (text === "eof") {
      if (!this.#isReady || this.#peerHasSentEof) return "`eof` was received before `ready` or twice.";
      this.#peerHasSentEof = true;
      this.#closeWhenComplete();
    } else if (text.startsWith("reset ")) {
      const { reason, message } = resetIn(text.slice("reset ".length));
      if (typeof reason !== "string" || !REASON.test(reason) || typeof message !== "string") {
        return "A malformed `reset` was received.";
      }
      this.#end(new StreamReset(reason, message));
    } else {
      return "An unknown message was received.";
    }
    return "";
  }

  #closeWhenComplete() {
    if (!this.isComplete) return;
    this.#channel.close();
    this.#closed.resolve();
  }

  /** @param {StreamReset} why */
  #end(why) {
    if (this.#over) return;
    this.#over = why;
    this.#arrived = [];
    this.#ready.reject(why);
    this.#closed.reject(why);
    this.#channel.close();
    this.#wake();
  }

  /**
   * Wait until a condition holds; rejects once the stream is over.
   * @param {() => boolean} condition
   */
  async #until(condition) {
    for (;;) {
      if (this.#over) throw this.#over;
      if (condition()) return;
      await new Promise((resolve) => this.#waiting.add(() => resolve(undefined)));
    }
  }

  #wake() {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const resume of waiting) resume();
  }
}

/** @param {string} text */
function resetIn(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}

/** Make a promise whose rejection need not be looked at. */
function promise() {
  const made = Promise.withResolvers();
  made.promise.catch(() => {});
  return made;
}
