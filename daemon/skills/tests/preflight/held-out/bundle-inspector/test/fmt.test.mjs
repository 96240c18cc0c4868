import { expect, test } from 'vitest';
import { kb } from '../scripts/fmt.mjs';
test('kb', () => expect(kb(1500)).toBe('1.5 kB'));
