export const headings = (data) => data.items.map((item) => item.title);
export { default as other } from "./other.mjs";
