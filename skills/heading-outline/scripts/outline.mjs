#!/usr/bin/env node
// Makes a table of contents of a Markdown file. See ../SKILL.md.

import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { headings, tree } from "./headings.mjs";

function fail(code, message) {
  console.error(`outline: ${message}`);
  process.exit(code);
}

function options() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: { json: { type: "boolean" }, depth: { type: "string", default: "6" } },
    });
  } catch (error) {
    return fail(2, error.message);
  }
}

const { values, positionals } = options();
if (positionals.length !== 1) fail(2, "usage: outline.mjs [--json] [--depth N] FILE");
if (!/^[1-6]$/.test(values.depth)) fail(2, "--depth takes a number from 1 to 6");

let text;
try {
  text = readFileSync(positionals[0], "utf8");
} catch (error) {
  fail(3, error.message);
}
const found = headings(text).filter(({ level }) => level <= Number(values.depth));
if (values.json) {
  console.log(JSON.stringify(tree(found)));
} else {
  const top = Math.min(...found.map(({ level }) => level));
  for (const { text, level, anchor } of found) {
    console.log(`${"  ".repeat(level - top)}- [${text}](#${anchor})`);
  }
}
