import { readFileSync } from 'fs';
import { hierarchy, treemap as layout } from 'd3-hierarchy';
import type { Metafile } from 'esbuild';
import type { OutputBundle } from 'rollup';
import { kb } from './fmt.mjs';

type Either = Metafile | OutputBundle;
interface Node { name: string; size?: number; children?: Node[] }

const meta = JSON.parse(readFileSync(process.argv[2], 'utf8')) as Either & Metafile;
const root: Node = { name: 'root', children: Object.entries(meta.inputs).map(([name, i]) => ({ name, size: i.bytes })) };
const tree = layout<Node>().size([1200, 700])(hierarchy(root).sum((d) => d.size ?? 0));
const box = (l: any) =>
  `<div title="${l.data.name} ${kb(l.value)}" style="position:absolute;left:${l.x0}px;top:${l.y0}px;width:${l.x1 - l.x0}px;height:${l.y1 - l.y0}px;outline:1px solid #fff;background:#68a"></div>`;
process.stdout.write(`<!doctype html>${tree.leaves().map(box).join('\n')}`);
