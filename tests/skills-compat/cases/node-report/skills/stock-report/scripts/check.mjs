// Checks a stock list: every item has a name and a whole number.
import { readFileSync } from "node:fs";
import { argv, exit } from "node:process";

const items = JSON.parse(readFileSync(argv[2], "utf8"));
const faults = items.flatMap((item, index) => {
  if (typeof item.name !== "string") return [`item ${index}: no name`];
  return Number.isInteger(item.count) ? [] : [`item ${index}: count of ${item.name} is ${JSON.stringify(item.count)}`];
});
console.log([`${items.length} items, ${faults.length} faults`, ...faults].join("\n"));
exit(faults.length ? 1 : 0);
