#!/usr/bin/env node
const { spawnSync } = require("child_process");
const { mkdirSync } = require("fs");
const { join } = require("path");

const SIZES = [16, 32, 180, 512];

function has(tool) {
  return spawnSync("which", [tool]).status === 0;
}

function render(source, size, target) {
  const tool = has("rsvg-convert") ? "rsvg-convert" : "convert";
  const args = tool === "convert" ? ["-resize", `${size}`, source, target] : ["-w", `${size}`, source, "-o", target];
  const done = spawnSync(tool, args, { stdio: "inherit" });
  if (done.error) throw done.error;
}

let pngToIco;
try {
  pngToIco = require("png-to-ico");
} catch {
  pngToIco = undefined;
}

async function main() {
  const [source, folder] = process.argv.slice(2);
  mkdirSync(folder, { recursive: true });
  for (const size of SIZES) render(source, size, join(folder, `${size}.png`));
  const res = spawnSync("optipng", ["-quiet", join(folder, "512.png")]);
  if (res.error) console.warn("not optimised");
}
main();
