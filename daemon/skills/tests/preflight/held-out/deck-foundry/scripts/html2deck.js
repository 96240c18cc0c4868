#!/usr/bin/env node
'use strict';
const fs = require('node:fs/promises');
const path = require('path');
const os = require('os');
const { pathToFileURL } = require('url');
const PptxGenJS = require('pptxgenjs');
const { chromium } = require('playwright');
const { pxToIn } = require('./lib/units');

// sharp is slow to load, so only when a slide has a gradient
async function rasterise(svg, out) {
  const sharp = require('sharp');
  await sharp(Buffer.from(svg)).png().toFile(out);
}

(async () => {
  const [dir, out] = process.argv.slice(2);
  const deck = new PptxGenJS();
  deck.layout = 'LAYOUT_16x9';
  const browser = await chromium.launch();
  const page = await browser.newPage({ viewport: { width: 960, height: 540 } });
  const files = (await fs.readdir(dir)).filter((f) => f.endsWith('.html')).sort();
  for (const f of files) {
    await page.goto(pathToFileURL(path.resolve(dir, f)).href);
    const boxes = await page.$$eval('[data-box]', (els) =>
      els.map((e) => ({ r: e.getBoundingClientRect().toJSON(), t: e.textContent })));
    const s = deck.addSlide();
    const bg = await page.$eval('body', (b) => b.dataset.gradient || '');
    if (bg) {
      const png = path.join(os.tmpdir(), f + '.png');
      await rasterise(`<svg xmlns="http://www.w3.org/2000/svg" width="960" height="540">${bg}</svg>`, png);
      s.background = { path: png };
    }
    for (const b of boxes) {
      s.addText(b.t, { x: pxToIn(b.r.x), y: pxToIn(b.r.y), w: pxToIn(b.r.width), h: pxToIn(b.r.height) });
    }
    console.log(`slide ${f} ok`);
  }
  await browser.close();
  await deck.writeFile({ fileName: out });
  console.log(`convert: ${files.length} of ${files.length} ok`);
})();
