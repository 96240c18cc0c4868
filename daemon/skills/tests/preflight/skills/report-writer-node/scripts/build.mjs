import { readFile, writeFile } from "node:fs/promises";
import path from "path";
import {
  Document,
  Packer,
  Paragraph,
} from "docx";
import { format } from "date-fns/format";
import { headings } from "./lib/headings.mjs";

const data = JSON.parse(await readFile(process.argv[2], "utf8"));
const children = headings(data).map((text) => new Paragraph({ text: `${text} from "nowhere"` }));
const doc = new Document({ sections: [{ children }] });
await writeFile(path.resolve(process.argv[3]), await Packer.toBuffer(doc));
console.log(format(new Date(), "yyyy"));
