// Makes a picture and a PDF file of an HTML page: shots.ts PAGE FOLDER
import { parse, resolve } from 'node:path';
import { chromium } from 'playwright';
import puppeteer from 'puppeteer';

interface Size {
    width: number;
    height: number;
}

const [source, folder] = process.argv.slice(2) as [string, string];
const url = `file://${resolve(source)}`;
const target = `${folder}/${parse(source).name}`;
const size: Size = { width: 320, height: 200 };

async function picture(): Promise<void> {
    const browser = await chromium.launch();
    const page = await browser.newPage({ viewport: size });
    await page.goto(url);
    await page.screenshot({ path: `${target}.png` });
    await browser.close();
    console.log(`${parse(target).base}.png: ${size.width}x${size.height}`);
}

async function print(): Promise<void> {
    const browser = await puppeteer.launch();
    const page = await browser.newPage();
    await page.goto(url);
    const pdf = Buffer.from(await page.pdf({ path: `${target}.pdf`, format: 'A5', landscape: true, printBackground: true }));
    await browser.close();
    const pages = pdf.toString('latin1').match(/\/Type\s*\/Page\b/g)?.length ?? 0;
    console.log(`${parse(target).base}.pdf: ${pages} page${pages === 1 ? '' : 's'}`);
}

picture().then(print);
