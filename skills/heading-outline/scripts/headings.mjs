// Headings of a Markdown file, outside of code.

/** All headings in order, with their anchors. */
export function headings(text) {
  const found = [];
  const seen = new Map();
  let fence = "";
  text
    .replace(/^\uFEFF/, "")
    .split(/\r?\n/)
    .forEach((line, index) => {
      const marker = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1] ?? "";
      if (fence) {
        if (marker.startsWith(fence) && line.trim() === marker) fence = "";
        return;
      }
      if (marker) {
        fence = marker;
        return;
      }
      const heading = /^(#{1,6})\s+(.*?)\s*#*\s*$/.exec(line);
      if (!heading) return;
      const plain = heading[2].toLowerCase().replace(/[^\p{L}\p{N}\-_ ]/gu, "").replaceAll(" ", "-");
      const times = seen.get(plain) ?? 0;
      seen.set(plain, times + 1);
      const anchor = times === 0 ? plain : `${plain}-${times}`;
      found.push({ text: heading[2], level: heading[1].length, line: index + 1, anchor });
    });
  return found;
}

/** The same as a tree: a heading's children are those below it until one of its own level. */
export function tree(flat) {
  const root = { level: 0, children: [] };
  const path = [root];
  for (const heading of flat) {
    const node = { ...heading, children: [] };
    while (path.at(-1).level >= node.level) path.pop();
    path.at(-1).children.push(node);
    path.push(node);
  }
  return root.children;
}
