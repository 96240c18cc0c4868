import { execFileSync, exec, spawn } from 'node:child_process';
import { promisify } from 'util';
import path from 'node:path';

const run = promisify(exec);
const VERSION = /v(\d+)/;

export function toHtml(source) {
  return execFileSync('pandoc', ['-t', 'html', source], { encoding: 'utf8' });
}

export async function toPdf(source, target) {
  const child = spawn("wkhtmltopdf", [source, target], { stdio: 'inherit' });
  await new Promise((resolve) => child.on('close', resolve));
}

async function preview(source) {
  const match = VERSION.exec(source);
  const { stdout } = await run(`inkscape --export-type=png "${source}" | cat`);
  return [match, stdout, spawn(process.execPath, ['x.js'])];
}

console.log(path.extname(process.argv[2]), await preview(process.argv[2]));
