/**
 * A front door and a gateway in the page itself: what a session is told, and a browser's own peer connection that
 * answers it, trickles and echoes. `order` notes what the session did.
 */

const KEEPER = 1023;

export class FakeMesh {
  /** @type {(string | object)[]} */
  order = [];
  round = 0;
  /** @type {RTCIceServer[]} */
  servers = [];
  /** @type {{url: string, onmessage: any, onclose: any}[]} */
  sockets = [];
  #gateway = new RTCPeerConnection();
  #sequence = 0;
  /** Holds the answer to an offer back until it resolves. */
  hold = Promise.resolve();

  constructor() {
    this.#gateway.createDataChannel("keeper", { negotiated: true, id: KEEPER });
    this.#gateway.ondatachannel = ({ channel }) => echo(channel);
    this.#gateway.onicecandidate = ({ candidate }) =>
      this.tell("candidates", {
        round: this.round,
        candidates: candidate?.candidate ? [candidate.candidate] : [],
        end_of_candidates: !candidate?.candidate,
      });
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {any} body
   */
  async call(method, path, body) {
    const named = path.split("/")[4] ?? method;
    const verb = body?.offer === "" ? "servers" : named;
    this.order.push(verb === "candidates" ? { ...body } : verb);
    switch (verb) {
      case "POST":
        return { session_id: "ses_fake", mode: body.mode, ice_servers: this.servers };
      case "servers":
        return { ice_servers: this.servers };
      case "offer":
      case "restart":
        this.round += 1;
        await this.#gateway.setRemoteDescription({ type: "offer", sdp: body.offer });
        const answer = await this.#gateway.createAnswer();
        await this.#gateway.setLocalDescription(answer);
        await this.hold;
        return { answer: answer.sdp, session: { round: this.round } };
      case "candidates":
        for (const candidate of body.candidates) {
          await this.#gateway.addIceCandidate({ candidate, sdpMLineIndex: 0 });
        }
        return { outcomes: body.candidates.map(() => "accepted") };
      default:
        return {};
    }
  }

  /** @param {string} path */
  socket(path) {
    this.order.push("watch");
    const socket = { url: path, onmessage: null, onclose: null, close: () => this.order.push("left") };
    this.sockets.push(socket);
    setTimeout(() => {
      this.order.push("subscribed");
      this.tell("subscribed", {}, 0);
    });
    return socket;
  }

  /**
   * Send an event to the newest watcher.
   * @param {string} type
   * @param {object} members
   * @param {number} [step]
   */
  tell(type, members, step = 1) {
    this.#sequence += step;
    const socket = this.sockets.at(-1);
    socket?.onmessage?.({ data: JSON.stringify({ type, sequence: this.#sequence, ...members }) });
  }

  /** Lose the newest watch. */
  drop() {
    this.sockets.at(-1)?.onclose?.();
  }

  /** Go away without a word to the front door. */
  leave() {
    this.#gateway.close();
  }
}

/**
 * Be the acceptor of `fairlead.bytes.v1` that sends back what comes.
 * @param {RTCDataChannel} channel
 */
function echo(channel) {
  channel.binaryType = "arraybuffer";
  channel.send("ready");
  channel.onmessage = ({ data }) => {
    channel.send(data);
    if (typeof data !== "string") channel.send(`credit ${data.byteLength}`);
  };
}
