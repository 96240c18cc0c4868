// Joins PDF files and stamps a word on each page: stamp.mjs TARGET WORD SOURCE …
import { readFile, writeFile } from 'node:fs/promises';
import { degrees, PDFDocument, rgb, StandardFonts } from 'pdf-lib';

const [target, word, ...sources] = process.argv.slice(2);
const joined = await PDFDocument.create();
for (const source of sources) {
    const bytes = await readFile(source);
    if (!bytes.subarray(0, 5).equals(Buffer.from('%PDF-'))) {
        console.error(`${source} is no PDF file`);
        process.exit(1);
    }
    const document = await PDFDocument.load(bytes);
    for (const page of await joined.copyPages(document, document.getPageIndices())) joined.addPage(page);
}
const font = await joined.embedFont(StandardFonts.HelveticaBold);
for (const page of joined.getPages()) {
    page.drawText(word, { x: 150, y: 300, size: 90, font, color: rgb(0.8, 0, 0), rotate: degrees(45), opacity: 0.5 });
}
joined.setTitle(word);
await writeFile(target, await joined.save());
console.log(`${joined.getPageCount()} pages stamped`);
