//! Tests of the reader of JavaScript and TypeScript imports, with text that only resembles an import.

use super::*;

fn names(source: &str) -> Vec<String> {
    let found = find_imports(source);
    found.iter().map(|import| import.names.join("|")).collect()
}

#[test]
fn packages_are_found_in_what_is_code_only() {
    for (source, expected) in [
        (
            "const a = require('docx'), {b} = require(\"@s/b/c\");",
            &["docx", "@s/b"][..],
        ),
        (
            "import a from 'a1';\nimport {\n  b,\n  type C,\n} from 'b1';\nimport 'c1'; import * as d from \"d1\"",
            &["a1", "b1", "c1", "d1"],
        ),
        (
            "export { x } from 'e1'; export * from 'f1'; export const y = 'from'",
            &["e1", "f1"],
        ),
        (
            "await import('g1'); const l = () => import(`h1`); import(`i1/${x}`)",
            &["g1", "h1"],
        ),
        (
            "import type { A } from 'types'; import type B from 'types'; export type { C } from 'types'",
            &[],
        ),
        ("import type from 'real'", &["real"]),
        (
            "import fs from 'fs'; require('node:path'); require('fs/promises'); import x from './y.js'; require('..')",
            &[],
        ),
        (
            "// require('a')\n/* import 'b' */ const s = \"require('c')\"; const t = `import 'd'`; x.require('e')",
            &[],
        ),
        (
            "const r = /require('a')/; const q = a / b; require('real')",
            &["real"],
        ),
        (
            "import x from 'https://x.example/y.js'; import y from 'npm:chalk@5'; import z from '@/lib'; import '#in'",
            &["chalk"],
        ),
        ("require.resolve('z1'); import.meta.url", &["z1"]),
        ("#!/usr/bin/env node\nimport a from 'a1'", &["a1"]),
    ] {
        assert_eq!(names(source), expected, "{source}");
    }
}

#[test]
fn a_guarded_package_is_needed_only_without_another_way() {
    for (source, expected) in [
        ("try { require('a1') } catch { x = null }", &[][..]),
        (
            "try { require('a1') } catch (e) { console.error(e); process.exit(1) }",
            &["a1"],
        ),
        (
            "try { if (y) { require('a1') } } catch (e) { throw new Error('x') }",
            &["a1"],
        ),
        (
            "try { require('a1') } catch (e) { require('b1') }",
            &["a1|b1"],
        ),
        (
            "try { require('a1') } finally { x() }\nrequire('c1')",
            &["a1", "c1"],
        ),
        ("try { require('a1')", &["a1"]),
        ("const a = await import('a1').catch(() => null)", &[]),
        (
            "const a = await import('a1').then((x) => x.default)",
            &["a1"],
        ),
    ] {
        assert_eq!(names(source), expected, "{source}");
    }
}
