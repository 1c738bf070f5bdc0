// One end of a data channel of node-datachannel (libdatachannel); see ../channel_peer.py.
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(`${process.argv[2]}/`);
const library = require("node-datachannel");
const isAnswerer = process.argv[3] === "answer";
const PIECE = 65536, HIGH = 1 << 20, LOW = 1 << 18;
const pattern = Buffer.alloc(PIECE);
for (let place = 0; place < PIECE; place++) pattern[place] = (31 * place + 7) & 255;
const piece = (number) => {
  const made = Buffer.from(pattern);
  made.writeBigUInt64BE(BigInt(number), 0);
  return made;
};
const digestOf = (size) => {
  const hash = createHash("sha256");
  for (let number = 0; number < size / PIECE; number++) hash.update(piece(number));
  return hash.digest("hex");
};
const say = (text) => process.stdout.write(`${text}\n`);

const connection = new library.PeerConnection("bench", { iceServers: [], maxMessageSize: PIECE });
let channel, hash, left = 0, onText, onEcho, onArrived, onRoom;

async function pour(size) {
  for (let number = 0; number < size / PIECE; number++) {
    if (channel.bufferedAmount() > HIGH) await new Promise((done) => (onRoom = done));
    channel.sendMessageBinary(piece(number));
  }
}

function take(message) {
  if (typeof message === "string") {
    if (!isAnswerer) return onText(message);
    const [word, size] = message.split(" ");
    if (word === "up") [hash, left] = [createHash("sha256"), Number(size)];
    else pour(Number(size));
  } else if (left) {
    hash.update(message);
    left -= message.length;
    if (!left) {
      if (isAnswerer) channel.sendMessage(hash.digest("hex"));
      else onArrived(hash.digest("hex"));
    }
  } else if (isAnswerer) channel.sendMessageBinary(message);
  else onEcho();
}

function attach(made) {
  channel = made;
  channel.setBufferedAmountLowThreshold(LOW);
  channel.onBufferedAmountLow(() => onRoom?.());
  channel.onMessage(take);
  if (!isAnswerer) channel.onOpen(() => say("open"));
}

async function obey(order) {
  const [word, number] = order.split(" ");
  const size = Number(number);
  if (word === "ping") {
    const spent = [];
    for (let count = 0; count < size; count++) {
      const begun = performance.now();
      await new Promise((done) => {
        onEcho = done;
        channel.sendMessageBinary(pattern.subarray(0, 64));
      });
      spent.push(performance.now() - begun);
    }
    return spent.sort((a, b) => a - b)[size >> 1] / 1000;
  }
  const wanted = digestOf(size);
  const begun = performance.now();
  let found;
  if (word === "up") {
    const answered = new Promise((done) => (onText = done));
    channel.sendMessage(order);
    await pour(size);
    found = await answered;
  } else {
    [hash, left] = [createHash("sha256"), size];
    const arrived = new Promise((done) => (onArrived = done));
    channel.sendMessage(order);
    found = await arrived;
  }
  const seconds = (performance.now() - begun) / 1000;
  if (found !== wanted) throw new Error("what arrived is not what was sent");
  return seconds;
}

connection.onGatheringStateChange((state) => {
  if (state === "complete") say(JSON.stringify({ sdp: connection.localDescription().sdp }));
});
if (isAnswerer) connection.onDataChannel(attach);
else attach(connection.createDataChannel("bench"));
let isDescribed = false;
for await (const line of createInterface({ input: process.stdin })) {
  if (isDescribed) {
    say(await obey(line));
    continue;
  }
  isDescribed = true;
  connection.setRemoteDescription(JSON.parse(line).sdp, isAnswerer ? "offer" : "answer");
}
process.exit(0);
