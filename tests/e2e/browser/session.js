/**
 * A session with a gateway, as a browser has it: `await Session.open(…)`, then `session.connect(port)` for each
 * connection to a port of the launch or the sandbox (docs/api.md, docs/protocol.md).
 */

import { ByteStream, PROTOCOL } from "./byte_stream.js";

/** Number of a data channel that both sides know of and that carries nothing: it opens and closes with the session. */
const KEEPER = 1023;
/** How long candidates are waited for when all of them have to be in the offer: a server may never answer. */
const GATHER_MILLISECONDS = 5000;

/** What the front door refused: its problem document (RFC 9457). */
export class Refused extends Error {
  /** @param {{status: number, reason: string, detail: string, remedy: string}} problem */
  constructor(problem) {
    super(problem.detail);
    this.name = "Refused";
    this.status = problem.status;
    this.reason = problem.reason;
    this.remedy = problem.remedy;
  }
}

/** The front door, called with a key. */
export class FrontDoor {
  #url;
  #key;

  /**
   * @param {string} url Where it is; the page's own origin, unless a proxy allows another one.
   * @param {string} key
   */
  constructor(url, key) {
    this.#url = url;
    this.#key = key;
  }

  /**
   * Call it; throws Refused, or TypeError when it cannot be reached. Call again with the same `repeat`: it is one call.
   * @param {string} method
   * @param {string} path
   * @param {object} [body]
   * @param {string} [repeat]
   */
  async call(method, path, body, repeat = crypto.randomUUID()) {
    const answer = await fetch(new URL(path, this.#url), {
      method,
      headers: {
        Authorization: `Bearer ${this.#key}`,
        "Content-Type": "application/json",
        "Idempotency-Key": repeat,
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const document = await answer.json();
    if (!answer.ok) throw new Refused(document);
    return document;
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
}

/** One association with a gateway. */
export class Session {
  #door;
  #connection = new RTCPeerConnection();
  #keeper;

  /**
   * Reserve a gateway and meet it; throws Refused, or Error when the two cannot reach each other.
   * @param {{door: FrontDoor, target: string}} options `target` is the id of a launch or of a sandbox.
   */
  static async open({ door, target }) {
    const opened = await door.call("POST", "/v1/sessions", { launch_id: target, mode: "complete" });
    const session = new Session(door, opened.session_id);
    try {
      await session.#offer();
      await session.#connected();
    } catch (error) {
      await session.close();
      throw error;
    }
    return session;
  }

  /**
   * Use `open`.
   * @param {FrontDoor} door
   * @param {string} id
   */
  constructor(door, id) {
    this.#door = door;
    this.id = id;
    this.#keeper = this.#connection.createDataChannel("keeper", { negotiated: true, id: KEEPER });
    // Without a word the gateway would notice a page that is gone only after half a minute (RFC 7675).
    addEventListener("pagehide", () => this.#connection.close());
  }

  /**
   * Open a connection to a TCP port; bytes may be written before it is connected there.
   * @param {number} port
   */
  connect(port) {
    return new ByteStream(this.#connection.createDataChannel(`tcp:${port}`, { protocol: PROTOCOL, ordered: true }));
  }

  /** Close the session, and every connection in it. */
  async close() {
    try {
      await this.#door.call("DELETE", `/v1/sessions/${this.id}`);
    } finally {
      this.#connection.close();
    }
  }

  /** How the association is: `connected`, `disconnected`, `failed`, … (W3C WebRTC, section 4.3.3). */
  get state() {
    return this.#connection.connectionState;
  }

  async #offer() {
    await this.#connection.setLocalDescription();
    await this.#gathered();
    const offer = this.#connection.localDescription?.sdp;
    const { answer } = await this.#door.call("POST", `/v1/sessions/${this.id}/offer`, { offer });
    await this.#connection.setRemoteDescription({ type: "answer", sdp: answer });
  }

  async #gathered() {
    await new Promise((resolve) => {
      const look = () => this.#connection.iceGatheringState === "complete" && resolve(undefined);
      this.#connection.onicegatheringstatechange = look;
      setTimeout(resolve, GATHER_MILLISECONDS);
      look();
    });
  }

  async #connected() {
    await new Promise((resolve, reject) => {
      this.#keeper.onopen = resolve;
      this.#connection.onconnectionstatechange = () => {
        if (this.state === "failed") reject(new Error("The gateway cannot be reached over UDP."));
      };
    });
  }
}
