// Runs inside the judge's own folder: what the Dockerfile linter of editors says about our files.
// node dockerfile.js FILE...; prints a JSON list of lists of messages.
const fs = require('node:fs');
const { createRequire } = require('node:module');
const { validate } = createRequire(process.cwd() + '/')('dockerfile-utils');

const texts = process.argv.slice(2).map((file) => fs.readFileSync(file, 'utf8'));
console.log(JSON.stringify(texts.map((text) => validate(text).map((found) => found.message))));
