import { build } from 'esbuild';
import { createRequire } from 'node:module';
import { readFile, writeFile } from 'node:fs/promises';
import zlib from 'zlib';
import kleur from 'kleur';
import { kb } from '#fmt';

const require = createRequire(import.meta.url);
const brotli = require('brotli-size');

const args = process.argv.slice(2);
const entry = args[0];
const top = Number(args[args.indexOf('--top') + 1]) || 10;

async function fromMap(file) {
  const { SourceMapConsumer } = await import('source-map');
  const raw = JSON.parse(await readFile(file + '.map', 'utf8'));
  return SourceMapConsumer.with(raw, null, (c) => c.sources.map((s) => [s, 0]));
}

async function sideEffects(code) {
  const babel = await import('@babel/parser');
  return babel.parse(code, { sourceType: 'module' }).program.body
    .filter((n) => n.type === 'ExpressionStatement').length;
}

const res = await build({ entryPoints: [entry], bundle: true, minify: true, metafile: true, write: false });
const out = Object.values(res.metafile.outputs)[0];
const rows = Object.entries(out.inputs).sort((a, b) => b[1].bytesInOutput - a[1].bytesInOutput).slice(0, top);
for (const [f, i] of rows) console.log(kb(i.bytesInOutput).padStart(10), kleur.cyan(f));
const text = res.outputFiles[0].text;
console.log('gzip', kb(zlib.gzipSync(text).length), 'brotli', kb(brotli.sync(text)), 'fx', await sideEffects(text));
await writeFile('meta.json', JSON.stringify(res.metafile));
if (args.includes('--map')) console.log(await fromMap(entry));
if (args.includes('--open')) {
  try {
    const { default: open } = await import('open');
    await open('treemap.html');
  } catch {
    console.log('open treemap.html yourself');
  }
}
