/** What the test page can be asked to do; each step is shown as a line. */

import { ByteStream } from "./byte_stream.js";
import { CandidateOutbox } from "./candidate_outbox.js";
import { FakeMesh } from "./fake_mesh.js";
import { FrontDoor } from "./front_door.js";
import { Session } from "./session.js";

const CHUNK = 65536;
const NAMES = {
  ByteStream,
  CandidateOutbox,
  FakeMesh,
  FrontDoor,
  Session,
  content,
  digest,
  echo,
  show,
};

/**
 * Show a line.
 * @param {string} text
 */
function show(text) {
  const line = document.createElement("li");
  line.textContent = text;
  document.getElementById("log")?.append(line);
}

/**
 * Send bytes to a port and return what comes back until its end.
 * @param {Session} session
 * @param {number} port
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
async function echo(session, port, bytes) {
  const stream = session.connect(port);
  const sent = new Blob([bytes]).stream().pipeTo(stream.writable);
  const [echoed] = await Promise.all([readAll(stream.readable), sent, stream.closed]);
  return echoed;
}

/**
 * Make up bytes.
 * @param {number} size
 */
function content(size) {
  const bytes = new Uint8Array(size);
  for (let at = 0; at < size; at += CHUNK) crypto.getRandomValues(bytes.subarray(at, at + CHUNK));
  return bytes;
}

/** @param {ReadableStream<Uint8Array>} readable */
async function readAll(readable) {
  return new Uint8Array(await new Response(readable).arrayBuffer());
}

/**
 * SHA-256, in hexadecimal digits.
 * @param {Uint8Array<ArrayBuffer>} bytes
 */
async function digest(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)).toHex();
}

Object.assign(window, NAMES);
