// Prints notes on the routes of a JSON file.
import { readFileSync } from "node:fs";
import { row } from "skilld-compat-tables";

const routes = JSON.parse(readFileSync(process.argv[2], "utf8"));
console.log(["# Routes", "", ...routes.map(({ place, km }) => `- ${place}: ${row(km)}`)].join("\n"));
