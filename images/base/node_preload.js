// Makes Node.js behave in a command of skilld as people expect it. NODE_OPTIONS of the image loads this file before every
// program, in each of its threads.
//
// Packages: `require` and `import` find them in the same places. Node.js itself looks in the node_modules folders of the
// importing file's directory and of those above it. Then come, for both, the folders of NODE_PATH (a skill's environment),
// the global packages of the image, and those of Debian. `import` needs a hook for it, which in Node.js 20 runs in a thread
// of its own: it starts only when a program is about to run that has an import.
//
// Network: os.networkInterfaces() would throw, since commands have no netlink sockets.
'use strict';

const fs = require('node:fs');
const Module = require('node:module');
const os = require('node:os');
const path = require('node:path');

const GLOBAL_PACKAGES = '/usr/local/lib/node_modules';
// The words that begin an import, what follows them in a statement and in a call, and what a comment's line begins with.
const WORDS = /\b(?:import|export)\b/g;
const STATEMENT = /^(?:import(?!\s*[(.])|export\s*[*{])(?:[^"'`]*["'`]([^"'`]*))?/;
const CALL = /^import\s*(?:\/[^(]*)?\(\s*(?:["']([^"'\n]*)["']\s*[),])?/;
const COMMENT = /\n[ \t]*(?:\*|\/\*\*)(?:(?!\*\/)[^\n])*$/;
// Characters around such a word, characters of a statement, and bytes of a program: the search takes linear time.
const NEAR_MAX = 256;
const STATEMENT_MAX = 4096;
const SOURCE_BYTES_MAX = 16 << 20;
const BARE = /^(@[^/:\\%]+\/[^/:\\%]+|[^@./#:\\%][^/:\\%]*)(\/.*)?$/;

// Folders in which `require` looks for packages, after the node_modules folders.
let folders = [];

// Adds the global packages after NODE_PATH. Node.js reads the variable only here; programs see it as it was.
function addGlobalPackages() {
    const given = process.env.NODE_PATH;
    process.env.NODE_PATH = given ? `${given}:${GLOBAL_PACKAGES}` : GLOBAL_PACKAGES;
    Module._initPaths();
    if (given === undefined) delete process.env.NODE_PATH;
    else process.env.NODE_PATH = given;
    folders = Module.globalPaths.map((folder) => path.resolve(folder));
}

function readManifest(root) {
    try {
        return JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8')) ?? {};
    } catch {
        return {};
    }
}

// Finds a package as `require` does. Returns what makes Node.js resolve it by the rules of `import`: its name, in a file
// of its own, if it has exports, else its file.
function findGlobalPackage(specifier) {
    const [, name, subpath = ''] = BARE.exec(specifier) ?? [];
    if (name === undefined) return undefined;
    for (const folder of folders) {
        const root = path.resolve(folder, name);
        const manifest = readManifest(root);
        if (manifest.exports != null && typeof manifest.name === 'string') {
            return { specifier: manifest.name + subpath, parent: path.join(root, 'package.json') };
        }
        try {
            const file = subpath ? fs.realpathSync(root + subpath) : require.resolve(root);
            return { specifier: toUrl(file) };
        } catch {
            // The next folder may have it.
        }
    }
    return undefined;
}

function toUrl(file) {
    return require('node:url').pathToFileURL(file).href;
}

// Resolves what Node.js did not find. The error that it threw names the importing file.
function resolveGlobal(specifier, context, next, error) {
    const found = error?.code === 'ERR_MODULE_NOT_FOUND' ? findGlobalPackage(specifier) : undefined;
    if (found === undefined) throw error;
    return next(found.specifier, found.parent ? { ...context, parentURL: toUrl(found.parent) } : context);
}

// Hooks of Node.js for the thread that module.register starts.
exports.initialize = (data) => {
    folders = data;
};
exports.resolve = async (specifier, context, next) => {
    try {
        return await next(specifier, context);
    } catch (error) {
        return resolveGlobal(specifier, context, next, error);
    }
};

// The hook of newer versions, which needs no thread. Node.js also calls it for `require`.
function resolveSync(specifier, context, next) {
    if (!context.conditions.includes('import')) return next(specifier, context);
    try {
        return next(specifier, context);
    } catch (error) {
        return resolveGlobal(specifier, context, next, error);
    }
}

let isRegistered = false;

function registerHook() {
    isRegistered = true;
    const { isMainThread, parentPort } = require('node:worker_threads');
    // The thread of the hook, which has no port, gets its folders from the program's.
    if (isMainThread || parentPort) Module.register?.(toUrl(__filename), { data: folders });
}

// Returns true if the word at this place can begin a statement.
function beginsStatement(text, at) {
    let last = at - 1;
    while (text[last] === ' ' || text[last] === '\t') last--;
    return last < 0 || '\r\n;}'.includes(text[last]) || (text[last] === '/' && text[last - 1] === '*');
}

// Returns what a text may import: by the statements import and export, and by the function import, "" where that is not
// given as a text. Imports in comments and texts count, too: they only start the hook where no one needs it. But those of
// types in comments (`@type {import('x')}`) are many.
function* listImports(text) {
    for (const { index: at } of text.matchAll(WORDS)) {
        const after = text.slice(at, at + STATEMENT_MAX);
        const statement = beginsStatement(text, at) && STATEMENT.exec(after);
        if (statement) {
            if (statement[1] !== undefined || after.length === STATEMENT_MAX) yield statement[1] ?? '';
            continue;
        }
        const call = CALL.exec(after.slice(0, NEAR_MAX));
        const before = (at < NEAR_MAX ? '\n' : '') + text.slice(Math.max(0, at - NEAR_MAX), at);
        if (call && !COMMENT.test(before)) yield call[1] ?? '';
    }
}

// Registers the hook if a text imports something that is not part of Node.js.
function registerFor(text) {
    if (isRegistered || !text) return;
    for (const specifier of listImports(text)) {
        if (!Module.isBuiltin(specifier)) return registerHook();
    }
}

// Returns the text of a program. It is undefined for a folder, for a pipe, which only Node.js itself can read, and for a
// file that Node.js can't read either.
function readSource(file) {
    let descriptor;
    try {
        if (!fs.statSync(file).isFile()) return undefined;
        descriptor = fs.openSync(file);
        const buffer = Buffer.allocUnsafe(Math.min(fs.fstatSync(descriptor).size, SOURCE_BYTES_MAX));
        return buffer.latin1Slice(0, fs.readSync(descriptor, buffer));
    } catch {
        return undefined;
    } finally {
        if (descriptor !== undefined) fs.closeSync(descriptor);
    }
}

// Calls a function whenever a method is looked up. A wrapper of the method would be a line in every stack trace.
function onLookup(object, name, inspect) {
    let method = object[name];
    Object.defineProperty(object, name, {
        configurable: true,
        enumerable: true,
        get() {
            if (!isRegistered) inspect(this);
            return method;
        },
        set(value) {
            if (this === object) method = value;
            else Object.defineProperty(this, name, { configurable: true, enumerable: true, value, writable: true });
        },
    });
}

function readMain() {
    const main = process.argv[1];
    try {
        return readSource(main) ?? readSource(require.resolve(main));
    } catch {
        return undefined;
    }
}

// Registers the hook when a text with an import is about to run: the main file of the program or of a thread, a CommonJS
// module, a text from an option, from stdin or for a thread.
function watchImports() {
    const options = process.execArgv.join('\n');
    if (/^--(?:import|(?:experimental-)?loader|input-type=module|experimental-default-type=module)\b/m.test(options)) {
        registerHook();
        return;
    }
    onLookup(Module, 'runMain', () => registerFor(readMain()));
    onLookup(Module.prototype, '_compile', (module) => registerFor(module.filename && readSource(module.filename)));
    onLookup(Module, '_nodeModulePaths', () => registerFor(process._eval));
}

function listInterfaces() {
    const list = os.networkInterfaces;
    os.networkInterfaces = () => {
        try {
            return list();
        } catch {
            const address = '127.0.0.1', netmask = '255.0.0.0', mac = '00:00:00:00:00:00';
            return { lo: [{ address, netmask, family: 'IPv4', mac, internal: true, cidr: `${address}/8` }] };
        }
    };
    // For programs that import the name.
    Module.syncBuiltinESMExports();
}

listInterfaces();
addGlobalPackages();
if (Module.registerHooks) Module.registerHooks({ resolve: resolveSync });
else watchImports();
