/**
 * A session with a gateway, as a browser has it: `await Session.open(…)`, then `session.connect(port)` for each
 * connection to a port of the launch or the sandbox (docs/api.md, docs/protocol.md).
 */

import { ByteStream, PROTOCOL } from "./byte_stream.js";
import { CandidateOutbox } from "./candidate_outbox.js";
import { Refused } from "./front_door.js";

export const WATCH_PROTOCOL = "fairlead.session.v1";
/** Number of a data channel that both sides know of and that carries nothing: it opens and closes with the session. */
const KEEPER = 1023;
/** How long candidates are waited for when all of them have to be in the offer: a server may never answer. */
const GATHER_MILLISECONDS = 5000;
/** Before a watch that was lost is begun again. */
const PAUSE_MILLISECONDS = 500;

/**
 * One association. Tells `close` (a CustomEvent whose `detail` is the event `closed`) once it is over, and `event`
 * for each event of the watch.
 */
export class Session extends EventTarget {
  #door;
  #isTrickle;
  #connection;
  #keeper;
  #round = 0;
  #cursor = 0;
  #outbox = new CandidateOutbox(async () => {});
  /** @type {WebSocket | null} */
  #watch = null;
  /** @type {{round: number, candidates: string[], end_of_candidates: boolean}[]} */
  #early = [];
  /** @type {Promise<void> | null} */
  #restart = null;
  #ended = new AbortController();
  #over = Promise.withResolvers();

  /**
   * Reserve a gateway and meet it; throws Refused (`mode_unsupported` where no gateway can do the mode), or Error when
   * the two cannot reach each other.
   * @param {{door: import("./front_door.js").FrontDoor, target: string, mode?: "trickle" | "complete"}} options
   *   `target` is the id of a launch or of a sandbox.
   */
  static async open({ door, target, mode = "complete" }) {
    const opened = await door.call("POST", "/v1/sessions", { launch_id: target, mode });
    const session = new Session(door, opened);
    try {
      if (mode === "trickle") await session.#watched();
      await session.#negotiate("offer");
      await session.#connected();
    } catch (error) {
      await session.close().catch(() => {});
      throw error;
    }
    return session;
  }

  /**
   * Use `open`.
   * @param {import("./front_door.js").FrontDoor} door
   * @param {{session_id: string, mode: string, ice_servers?: RTCIceServer[]}} opened
   */
  constructor(door, opened) {
    super();
    this.#door = door;
    this.id = opened.session_id;
    this.#isTrickle = opened.mode === "trickle";
    this.#over.promise.catch(() => {});
    this.#connection = new RTCPeerConnection({ iceServers: opened.ice_servers ?? [] });
    this.#connection.onicecandidate = ({ candidate }) => this.#found(candidate);
    this.#connection.onconnectionstatechange = () => {
      if (this.state === "failed") this.#end("connection_failed", "The gateway cannot be reached over UDP.");
    };
    this.#keeper = this.#connection.createDataChannel("keeper", { negotiated: true, id: KEEPER });
    this.#keeper.onclose = () => this.#end("peer_closed", "The gateway ended the association.");
    // Without a word the gateway would notice a page that is gone only after half a minute (RFC 7675).
    addEventListener("pagehide", () => this.#connection.close(), { signal: this.#ended.signal });
  }

  /** How the association is: `connected`, `disconnected`, `failed`, … (W3C WebRTC, section 4.3.3). */
  get state() {
    return this.#connection.connectionState;
  }

  /** The round of the negotiation, from 1; each restart is one more. */
  get round() {
    return this.#round;
  }

  /**
   * Open a connection to a TCP port; bytes may be written before it is connected there.
   * @param {number} port
   */
  connect(port) {
    return new ByteStream(this.#connection.createDataChannel(`tcp:${port}`, { protocol: PROTOCOL, ordered: true }));
  }

  /**
   * Find another path (ICE restart, RFC 8445 section 9) while connections go on over the old one, and wait until it
   * is in use; one that is under way is joined. Mode `trickle` only.
   */
  async restart() {
    this.#restart ??= this.#anotherPath().finally(() => {
      this.#restart = null;
    });
    await this.#restart;
  }

  /** Close the session, and every connection in it. */
  async close() {
    try {
      await this.#door.call("DELETE", `/v1/sessions/${this.id}`);
    } finally {
      this.#end("requested", "");
    }
  }

  async #anotherPath() {
    if (this.#connection.getConfiguration().iceServers?.length) {
      // What TURN servers are told by was good for a while only.
      const { ice_servers } = await this.#post("restart", { offer: "" });
      this.#connection.setConfiguration({ iceServers: ice_servers });
    }
    this.#connection.restartIce();
    const name = await this.#negotiate("restart");
    const transport = /** @type {RTCIceTransport} */ (this.#connection.sctp?.transport.iceTransport);
    const isNew = () => transport.getSelectedCandidatePair()?.local.usernameFragment === name;
    await Promise.race([
      this.#over.promise,
      new Promise((resolve) => {
        const look = () => isNew() && resolve(undefined);
        transport.addEventListener("selectedcandidatepairchange", look);
        look();
      }),
    ]);
  }

  /**
   * Have the gateway answer an offer, and return the name that this side has in it.
   * @param {"offer" | "restart"} verb
   */
  async #negotiate(verb) {
    this.#outbox.close();
    let round = 0;
    const outbox = new CandidateOutbox((candidates, ended) =>
      this.#post("candidates", { round, candidates, end_of_candidates: ended }),
    );
    let offer = await this.#connection.createOffer();
    this.#outbox = outbox;
    await this.#connection.setLocalDescription(offer);
    if (!this.#isTrickle) {
      await this.#gathered();
      offer = /** @type {RTCSessionDescription} */ (this.#connection.localDescription);
    }
    const { answer, session } = await this.#post(verb, { offer: offer.sdp });
    this.#round = round = session.round ?? 1;
    if (this.#isTrickle) outbox.open();
    await this.#connection.setRemoteDescription({ type: "answer", sdp: answer });
    for (const event of this.#early.splice(0)) this.#take(event);
    return nameIn(offer.sdp ?? "");
  }

  /**
   * @param {string} verb
   * @param {object} body
   */
  #post(verb, body) {
    return this.#door.call("POST", `/v1/sessions/${this.id}/${verb}`, body);
  }

  /** @param {RTCIceCandidate | null} candidate */
  #found(candidate) {
    if (!candidate?.candidate) {
      this.#outbox.end();
    } else if (candidate.usernameFragment === nameIn(this.#connection.localDescription?.sdp ?? "")) {
      this.#outbox.add(candidate.candidate);
    }
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
    await Promise.race([this.#over.promise, new Promise((resolve) => (this.#keeper.onopen = resolve))]);
    this.#outbox.close();
  }

  /** Watch what happens, over as many WebSockets as it takes; resolves when the first one is subscribed. */
  async #watched() {
    await Promise.race([
      this.#over.promise,
      new Promise((resolve, reject) => {
        const begin = () => {
          const path = `/v1/sessions/${this.id}/watch${this.#cursor ? `?cursor=${this.#cursor}` : ""}`;
          const socket = (this.#watch = this.#door.socket(path, WATCH_PROTOCOL));
          socket.onmessage = ({ data }) => {
            const event = JSON.parse(data);
            if (event.type === "subscribed") resolve(undefined);
            else if (event.type === "problem") this.#refused(event.problem, reject);
            else this.#hear(event);
          };
          socket.onclose = () => this.#watch === socket && setTimeout(begin, PAUSE_MILLISECONDS);
        };
        begin();
      }),
    ]);
  }

  /**
   * Begin the next watch at the start when the events in between are gone, or a store has lost them; none where that would not help either.
   * @param {{status: number, reason: string, detail: string, remedy: string}} problem
   * @param {(error: Refused) => void} reject
   */
  #refused(problem, reject) {
    this.#cursor = 0;
    if (problem.status >= 500 || problem.status === 410 || problem.reason === "cursor_invalid") return;
    this.#watch = null;
    reject(new Refused(problem.status, problem));
  }

  /** @param {any} event */
  #hear(event) {
    this.#cursor = event.sequence ?? this.#cursor;
    this.dispatchEvent(new CustomEvent("event", { detail: event }));
    switch (event.type) {
      case "candidates":
        this.#take(event);
        break;
      case "restart_wanted":
        if (event.round === this.#round) this.restart().catch(() => {});
        break;
      case "closed":
        this.#end(event.reason, event.message);
        break;
    }
  }

  /**
   * Use candidates of the gateway, once the answer that they belong to is there.
   * @param {{round: number, candidates: string[], end_of_candidates: boolean}} event
   */
  #take(event) {
    const description = this.#connection.remoteDescription;
    if (event.round > this.#round || !description) {
      this.#early.push(event);
    } else if (event.round === this.#round) {
      const found = event.end_of_candidates ? [...event.candidates, ""] : event.candidates;
      for (const candidate of found) {
        // One of a kind that this browser does not know is no loss.
        this.#connection.addIceCandidate({ candidate, sdpMLineIndex: 0 }).catch(() => {});
      }
    }
  }

  /**
   * @param {string} reason
   * @param {string} message
   */
  #end(reason, message) {
    if (this.#ended.signal.aborted) return;
    this.#ended.abort();
    const watch = this.#watch;
    this.#watch = null;
    watch?.close();
    this.#outbox.close();
    this.#connection.close();
    this.#over.reject(new Error(message || `The session is closed: ${reason}.`));
    this.dispatchEvent(new CustomEvent("close", { detail: { reason, message } }));
  }
}

/**
 * Return the name that a description gives its side (RFC 8839, section 5.4).
 * @param {string} sdp
 */
function nameIn(sdp) {
  return /^a=ice-ufrag:(\S+)/m.exec(sdp)?.[1];
}
