// Prints a distance in miles.
const { toMiles } = await import("skilld-compat-units");
console.log(toMiles(Number(process.argv[2])).toFixed(1));
