#!/usr/bin/env node
// Prints the items of which there are fewer than --below.
const fs = require("fs");
const path = require("path");
const { table } = require("plain-table");

if (require.main === module) {
  const [file, , below] = process.argv.slice(2);
  const items = JSON.parse(fs.readFileSync(path.resolve(file), "utf8"));
  const low = items.filter((item) => item.count < Number(below)).sort((a, b) => a.count - b.count);
  console.log(`# Low stock\n\n${table(["item", "count"], low.map((item) => [item.name, item.count]))}`);
}
