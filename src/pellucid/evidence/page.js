// Checks an evidence bundle in the browser. Nothing is loaded, nothing is sent: the keys and the bundle
// come from the files you choose. A key that came inside the bundle is never believed.
"use strict";

const utf8 = new TextEncoder();
const fromUtf8 = (bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes);
const hex = (bytes) => [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
const unhex = (text) => Uint8Array.from(text.match(/../g) || [], (pair) => parseInt(pair, 16));
const unbase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const isSame = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);
const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

function join(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let position = 0;
  for (const part of parts) { whole.set(part, position); position += part.length; }
  return whole;
}

function demand(truth, place, reason) {
  if (!truth) throw Object.assign(new Error(reason), { place });
}

// -- the container: a zip of stored members ------------------------------------------------------

function readZip(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const members = new Map();
  let at = 0;
  while (at + 30 <= data.length && view.getUint32(at, true) === 0x04034b50) {
    const size = view.getUint32(at + 18, true), nameSize = view.getUint16(at + 26, true);
    const name = fromUtf8(data.subarray(at + 30, at + 30 + nameSize));
    const start = at + 30 + nameSize;
    demand(start + size <= data.length && !members.has(name), name, "the container is broken here");
    members.set(name, data.subarray(start, start + size));
    at = start + size;
  }
  demand(members.size > 0, "container", "this is not an evidence bundle");
  return members;
}

function member(members, name) {
  demand(members.has(name), name, "missing");
  return members.get(name);
}

// -- keys and signatures --------------------------------------------------------------------------

async function parseLogKey(text) {
  const parts = text.trim().match(/^([^+ ]+)\+([0-9a-f]{8})\+([A-Za-z0-9+/=]+)$/);
  demand(parts, "log.vkey", "expected a verifier key: name+hash+key");
  const [, name, id, key] = parts;
  const raw = unbase64(key);
  const known = hex((await sha256(join(utf8.encode(name + "\n"), raw))).subarray(0, 4));
  demand(raw.length === 33 && raw[0] === 1 && known === id, "log.vkey", "expected an Ed25519 verifier key");
  return { name, id: unhex(id), raw: raw.subarray(1) };
}

async function parsePem(text, place) {
  const body = text.match(/-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----/);
  demand(body, place, "expected a public key in PEM");
  const der = unbase64(body[1].replace(/\s/g, ""));
  const lines = btoa(String.fromCharCode(...der)).match(/.{1,64}/g).join("\n");
  const pem = `-----BEGIN PUBLIC KEY-----\n${lines}\n-----END PUBLIC KEY-----\n`;
  const key = await crypto.subtle.importKey("spki", der, { name: "ECDSA", namedCurve: "P-256" }, false, ["verify"]);
  return { key, fingerprint: hex(await sha256(utf8.encode(pem))) };
}

// WebCrypto wants r and s as 32 bytes each, envelopes carry DER.
function rawSignature(der) {
  const take = (at) => {
    demand(der[at] === 2 && der[at + 1] <= 33, "signature", "expected DER");
    const body = der.subarray(at + 2, at + 2 + der[at + 1]);
    const number = body.length > 32 ? body.subarray(1) : body;
    return [join(new Uint8Array(32 - number.length), number), at + 2 + der[at + 1]];
  };
  demand(der[0] === 0x30, "signature", "expected DER");
  const [r, next] = take(2);
  const [s] = take(next);
  return join(r, s);
}

async function openEnvelope(place, raw, key) {
  const envelope = JSON.parse(fromUtf8(raw)).dsseEnvelope;
  const payload = unbase64(envelope.payload), type = utf8.encode(envelope.payloadType);
  const head = utf8.encode(`DSSEv1 ${type.length} ${envelope.payloadType} ${payload.length} `);
  const signature = rawSignature(unbase64(envelope.signatures[0].sig));
  const how = { name: "ECDSA", hash: "SHA-256" };
  demand(await crypto.subtle.verify(how, key, signature, join(head, payload)), place, "the signature does not verify");
  return payload;
}

// -- the log --------------------------------------------------------------------------------------

async function openCheckpoint(place, raw, log) {
  const text = fromUtf8(raw), cut = text.indexOf("\n\n");
  const [origin, size, root] = text.slice(0, cut).split("\n");
  demand(origin === log.name, place, `expected the log ${log.name}, got ${origin}`);
  const body = utf8.encode(text.slice(0, cut + 1));
  const key = await crypto.subtle.importKey("raw", log.raw, { name: "Ed25519" }, false, ["verify"]);
  let signed = false;
  for (const line of text.slice(cut + 2).trimEnd().split("\n")) {
    const [, name, blob] = line.match(/^\u2014 (\S+) (\S+)$/) || [];
    const bytes = name === log.name ? unbase64(blob) : new Uint8Array();
    if (bytes.length && isSame(bytes.subarray(0, 4), log.id)) {
      signed = await crypto.subtle.verify({ name: "Ed25519" }, key, bytes.subarray(4), body);
      demand(signed, place, "the log's signature does not verify");
    }
  }
  demand(signed, place, "not signed by the log whose key you chose");
  return { origin, size: Number(size), root: unbase64(root) };
}

const hashLeaf = (entry) => sha256(join(Uint8Array.of(0), entry));
const hashChildren = (left, right) => sha256(join(Uint8Array.of(1), left, right));

async function rootByInclusion(index, size, leaf, proof) {
  let node = BigInt(index), last = BigInt(size) - 1n, root = leaf;
  for (const sibling of proof) {
    demand(last > 0n, "proof", "too many hashes");
    if (node & 1n || node === last) {
      root = await hashChildren(sibling, root);
      while (!(node & 1n) && node) { node >>= 1n; last >>= 1n; }
    } else {
      root = await hashChildren(root, sibling);
    }
    node >>= 1n; last >>= 1n;
  }
  demand(last === 0n, "proof", "too few hashes");
  return root;
}

async function checkEntry(members, name, checkpoint) {
  const place = name.replace(".json", ".tlog-proof");
  const [head] = fromUtf8(member(members, place)).split("\n\n");
  const [, indexLine, ...lines] = head.split("\n");
  const index = Number(name.slice(8, 20));
  demand(indexLine === `index ${index}` && index < checkpoint.size, place, "is the proof of another entry");
  const root = await rootByInclusion(index, checkpoint.size, await hashLeaf(members.get(name)), lines.map(unbase64));
  demand(isSame(root, checkpoint.root), name, `is not entry ${index} of the log`);
}

// -- the values of the call -----------------------------------------------------------------------

function outputDigest(opening) {
  const optional = (text) => {
    if (text === null) return Uint8Array.of(0);
    const raw = utf8.encode(text), size = new Uint8Array(4);
    new DataView(size.buffer).setUint32(0, raw.length);
    return join(Uint8Array.of(1), size, raw);
  };
  const parts = [unhex(opening.digest), optional(opening.label), optional(opening.confidence)];
  return sha256(join(utf8.encode("pellucid/output-row/v1\n"), ...parts));
}

async function isOpen(commitment, key, digest) {
  if (commitment.startsWith("sha256:")) return commitment === "sha256:" + hex(digest);
  const how = { name: "HMAC", hash: "SHA-256" };
  const secret = await crypto.subtle.importKey("raw", key, how, false, ["sign"]);
  return commitment === "hmac-sha256:" + hex(new Uint8Array(await crypto.subtle.sign("HMAC", secret, digest)));
}

async function checkOpenings(members, name, say) {
  const entry = JSON.parse(fromUtf8(member(members, `entries/${name.slice(9)}`))).data;
  const document = JSON.parse(fromUtf8(members.get(name)));
  const rows = entry.rows || document.rows;
  for (const opening of document.openings) {
    const where = `${name}: ${opening.kind} of row ${opening.row}`;
    if (opening.kind === "output") {
      const open = await isOpen(rows[opening.row].output, unhex(opening.key), await outputDigest(opening));
      demand(open, where, "does not open the commitment in the entry");
      say("holds", `row ${opening.row}: the committed answer is ${opening.label} with confidence ${opening.confidence}`);
    } else if (opening.kind !== "input") {
      const value = unbase64(opening.value);
      const digest = await sha256(join(utf8.encode("pellucid/text/v1\n"), value));
      const open = await isOpen(entry.personal[opening.kind], unhex(opening.key), digest);
      demand(open, where, "does not open the commitment in the entry");
    }
  }
}

// -- the whole check ------------------------------------------------------------------------------

async function checkManifest(members, exporter, say) {
  const place = "manifest.sigstore.json", raw = member(members, "manifest.json");
  const payload = await openEnvelope(place, member(members, place), exporter.key);
  demand(isSame(payload, raw), "manifest.json", "differs from what the exporter signed");
  const listed = JSON.parse(fromUtf8(raw)).members;
  demand(listed.length === members.size - 2, "manifest.json", "lists other members than the bundle holds");
  for (const { path, digest } of listed) {
    const got = "sha256:" + hex(await sha256(member(members, path)));
    demand(got === digest, path, "changed after it was signed");
  }
  say("holds", `manifest: ${listed.length} members, each as the exporter signed it`);
}

async function checkSeen(seen, now, log, say) {
  if (!seen) {
    say("note", "no seen.checkpoint chosen: a rolled-back log cannot be told from a young one");
    return;
  }
  const before = await openCheckpoint("seen.checkpoint", seen, log);
  demand(now.size >= before.size, "log/checkpoint", `older than the checkpoint you saw (size ${before.size})`);
  if (now.size === before.size) {
    demand(isSame(now.root, before.root), "log/checkpoint", "forked from the checkpoint you saw");
    say("holds", "the log is exactly at the checkpoint you saw");
  } else {
    say("note", `the log grew from ${before.size}; verify.py checks that it continues what you saw`);
  }
}

async function checkBundle(bundle, trust, say) {
  const log = await parseLogKey(fromUtf8(member(trust, "log.vkey")));
  const exporter = await parsePem(fromUtf8(member(trust, "exporter.pem")), "exporter.pem");
  say("note", `log key ${hex(log.id)} (${log.name}), exporter key ${exporter.fingerprint}: compare them with what you were given`);
  const members = readZip(bundle);
  await checkManifest(members, exporter, say);
  const checkpoint = await openCheckpoint("log/checkpoint", member(members, "log/checkpoint"), log);
  say("holds", `checkpoint: ${checkpoint.origin} signed ${checkpoint.size} entries`);
  await checkSeen(trust.get("seen.checkpoint"), checkpoint, log, say);
  const entries = [...members.keys()].filter((name) => /^entries\/\d{12}\.json$/.test(name));
  for (const name of entries) await checkEntry(members, name, checkpoint);
  if (entries.length) say("holds", `${entries.length} entries are in the log, each by its inclusion proof`);
  for (const name of members.keys()) if (name.startsWith("openings/")) await checkOpenings(members, name, say);
  say("note", "packages, replay reports and periods are checked by verify.py, which needs only Python");
}

// -- the page -------------------------------------------------------------------------------------

const list = document.getElementById("result"), verdict = document.getElementById("verdict");

function say(kind, text) {
  const item = document.createElement("li"), word = document.createElement("b");
  item.className = kind;
  word.textContent = kind;
  item.append(word, text);
  list.append(item);
}

function conclude(kind, text) {
  verdict.className = kind;
  verdict.textContent = text;
  document.body.dataset.result = kind;
}

async function readAll(input) {
  const found = new Map();
  for (const file of input.files) found.set(file.name, new Uint8Array(await file.arrayBuffer()));
  return found;
}

async function check() {
  list.replaceChildren();
  try {
    const trust = await readAll(document.getElementById("trust"));
    const [bundle] = (await readAll(document.getElementById("bundle"))).values();
    demand(bundle && trust.size, "this page", "choose your trust files and the bundle first");
    await checkBundle(bundle, trust, say);
    conclude("holds", "Holds: this is what was recorded, unchanged. Integrity is shown, truth is not.");
  } catch (problem) {
    say("fails", `${problem.place || "bundle"}: ${problem.message}`);
    conclude("fails", "Does not hold.");
  }
}

document.getElementById("check").addEventListener("click", check);
