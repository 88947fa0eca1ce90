// Runs inside the judge's own folder: what Sigstore's stock verifier says about our bundles.
// node verify.js CASES.json, each case {bundle, public_pem}; prints a JSON list of true or a reason.
const fs = require('node:fs');
const crypto = require('node:crypto');
const { createRequire } = require('node:module');
const stock = createRequire(process.cwd() + '/');
const { bundleFromJSON } = stock('@sigstore/bundle');
const { Verifier, toSignedEntity } = stock('@sigstore/verify');

function judge({ bundle, public_pem }) {
  const publicKey = crypto.createPublicKey(public_pem);
  const trust = {
    certificateAuthorities: [],
    timestampAuthorities: [],
    tlogs: [],
    ctlogs: [],
    publicKey: () => ({ publicKey, validFor: () => true }),
  };
  const options = { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 };
  try {
    new Verifier(trust, options).verify(toSignedEntity(bundleFromJSON(JSON.parse(bundle))));
    return true;
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
}

const cases = JSON.parse(fs.readFileSync(process.argv[2], 'utf8'));
console.log(JSON.stringify(cases.map(judge)));
