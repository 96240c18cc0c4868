#!/usr/bin/env node
import { writeFile } from 'fs/promises';
import { parseArgs } from 'node:util';
import AxeBuilder from '@axe-core/playwright';
import { chromium } from 'playwright';

const { positionals: [url], values } = parseArgs({
  allowPositionals: true,
  options: { json: { type: 'string' } },
});
const browser = await chromium.launch();
const ctx = await browser.newContext();
const page = await ctx.newPage();
await page.goto(url);
const { violations } = await new AxeBuilder({ page }).analyze();
for (const v of violations) console.log(`${v.impact}\t${v.id}\t${v.nodes.length}x\t${v.help}`);
if (values.json) await writeFile(values.json, JSON.stringify(violations));
await browser.close();
process.exit(violations.some((v) => v.impact === 'critical') ? 1 : 0);
