#!/usr/bin/env node
const fs = require('fs');
const path = require('node:path');
const pptxgen = require('pptxgenjs');
const sharp = require("sharp");
const { readSlides } = require('./lib/slides');

async function main() {
  const deck = new pptxgen();
  for (const slide of readSlides(process.argv[2])) {
    const png = await sharp(Buffer.from(slide.svg)).png().toBuffer();
    deck.addSlide().addImage({ data: 'image/png;base64,' + png.toString('base64') });
  }
  await deck.writeFile({ fileName: path.resolve(process.argv[3]) });
}
main();
