'use strict';
const fs = require('fs');
const { readFile } = require('fs/promises');
const { program } = require('commander');
const chalk = require('chalk');
const { parse } = require("csv-parse/sync");
const util = require('./util');
const pkg = require('../package.json');

program
  .version(pkg.version)
  .command('query <file>')
  .action(async (file) => {
    const rows = parse(await readFile(file, 'utf8'), { columns: true });
    console.log(chalk.green(`${rows.length} rows`), util.first(rows));
  });
program.parse();
