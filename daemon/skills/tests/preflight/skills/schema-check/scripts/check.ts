import { readFileSync } from 'node:fs';
import { z } from 'zod';
import type { JSONSchema7 } from 'json-schema';
import { type Options, run } from '@scope/runner/lib/run.js';
import { local } from './local.ts';
import shared from '@/shared/thing';

async function image(path: string) {
  try {
    const { default: sharp } = await import('sharp');
    return sharp(path);
  } catch {
    return null;
  }
}

const lazy = () => import('ajv/dist/2020.js');
const schema: JSONSchema7 = z.toJSONSchema(z.object({ a: z.string() }));
console.log(run(schema, local, shared, readFileSync(process.argv[2], 'utf8')), lazy, image);
