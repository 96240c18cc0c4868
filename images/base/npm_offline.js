// Runs `npm install`, `npm ci`, `npm exec` and `npx` in a workspace, which has no network. A package that the workspace
// has counts as installed, as for pip; npm would look for it in its registry. What is missing is named at once.
//
// Usage: npm_offline.js npm|npx ARGUMENT…. It starts the image's own npm for everything else.
'use strict';

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');

const REAL = { npm: '/usr/bin/npm', npx: '/usr/bin/npx' };
const INSTALL = /^(?:i|in|ins|inst|insta|instal|install|isnt|isnta|isntal|isntall|add)$/;
const CLEAN_INSTALL = /^(?:ci|clean-install|ic|install-clean|isntall-clean)$/;
const EXEC = /^(?:exec|x)$/;
// Options whose value is the next argument.
const WITH_VALUE = new Set(['-C', '--prefix', '--loglevel', '--cache', '--userconfig', '--globalconfig', '-w', '--workspace', '--tag',
    '--omit', '--include', '-p', '--package', '-c', '--call', '--install-strategy', '--script-shell']);
// Options that lead to another place than the registry, or need a part of npm that this file does not have.
const REAL_ONLY = /^(?:--registry|--@[^:]+:registry|-w|--workspaces?|-h|--help|--globalconfig|--userconfig)(?:=|$)/;

const npmRequire = Module.createRequire(fs.realpathSync(REAL.npm));
const parseSpec = npmRequire('npm-package-arg');
const semver = npmRequire('semver');

function parse(args) {
    const parsed = { words: [], packages: [], rest: [], isGlobal: false, isReal: false };
    for (let at = 0; at < args.length; at++) {
        const [name, inline] = args[at].startsWith('--') ? args[at].split(/=(.*)/s) : [args[at]];
        if (args[at] === '--' || (!name.startsWith('-') && parsed.stopsAtWord)) {
            parsed.rest = args.slice(args[at] === '--' ? at + 1 : at);
            break;
        }
        if (!name.startsWith('-')) {
            parsed.words.push(name);
            parsed.stopsAtWord = parsed.words.length === 1 && EXEC.test(name);
            continue;
        }
        const value = inline ?? (WITH_VALUE.has(name) ? args[++at] : undefined);
        if (REAL_ONLY.test(name)) parsed.isReal = true;
        else if (name === '-g' || name === '--global' || (name === '--location' && value === 'global')) parsed.isGlobal = inline !== 'false';
        else if (name === '-C' || name === '--prefix') parsed.folder = value;
        else if (name === '-p' || name === '--package') parsed.packages.push(value);
        else if (name === '-c' || name === '--call') parsed.call = value;
    }
    return parsed;
}

// Folders in which `require` looks for packages. A global installation adds to the image's.
function listFolders(from, isGlobal) {
    return [...(isGlobal ? [] : Module._nodeModulePaths(from)), ...Module.globalPaths];
}

function readJson(file) {
    try {
        return JSON.parse(fs.readFileSync(file, 'utf8'));
    } catch {
        return undefined;
    }
}

function findPackage(name, folders) {
    for (const folder of folders) {
        const root = path.join(folder, name);
        const manifest = readJson(path.join(root, 'package.json'));
        if (manifest) return { root, manifest };
    }
    return undefined;
}

function fits(version, spec) {
    if (spec.type === 'tag') return spec.fetchSpec === 'latest';
    return semver.satisfies(version ?? '', spec.fetchSpec || '*', { includePrerelease: true, loose: true });
}

// Looks for what a request for a package names. An alias is found by its own name.
function check(text, folders, name) {
    const spec = name ? parseSpec.resolve(name, text) : parseSpec(text);
    const target = spec.type === 'alias' ? spec.subSpec : spec;
    if (!target.registry) return { isReal: true };
    const found = findPackage(spec.name, folders) ?? findPackage(target.name, folders);
    const version = found?.manifest.version;
    const asked = target.rawSpec && target.rawSpec !== '*' ? `${target.name}@${target.rawSpec}` : target.name;
    if (found && fits(version, target)) return { found, text: `${found.manifest.name}@${version}` };
    return { isMissing: true, package: target.name, text: found ? `${asked} (${version} is there)` : asked };
}

function refuse(tool, checks) {
    const missing = checks.filter((item) => item.isMissing);
    const there = checks.filter((item) => item.found);
    const options = missing.map((item) => `--npm ${item.package}`).join(' ');
    console.error(`${tool} error network: commands have no network, so ${tool} can't get ${missing.map((item) => item.text).join(', ')}` +
        `${there.length ? ` (already there: ${there.map((item) => item.text).join(', ')})` : ''}: packages come with the image or ` +
        `with the skill's package.json; the operator adds them by skillctl skill prepare NAME ${options}, or offers another pool`);
    process.exitCode = 1;
}

function install(parsed, args, isClean) {
    const folder = path.resolve(parsed.folder ?? '.');
    const folders = listFolders(folder, parsed.isGlobal);
    const requests = parsed.words.slice(1).concat(parsed.rest);
    let checks;
    if (requests.length && !isClean) {
        checks = requests.map((request) => check(request, folders));
    } else {
        const manifest = readJson(path.join(folder, 'package.json'));
        if (!manifest || parsed.isGlobal || manifest.workspaces) return run(REAL.npm, args);
        const needs = { ...manifest.devDependencies, ...manifest.dependencies };
        checks = Object.entries(needs).map(([name, range]) => check(range, folders, name));
    }
    if (checks.length === 0 || checks.some((item) => item.isReal)) return run(REAL.npm, args);
    if (checks.some((item) => item.isMissing)) return refuse('npm', checks);
    console.log(`up to date: already there: ${checks.map((item) => item.text).join(', ')}`);
}

// Returns the program of a package that has its name, or its only one.
function findBin(found, name) {
    const bin = found.manifest.bin;
    const short = name.replace(/^@[^/]*\//, '');
    const file = typeof bin === 'string' ? bin : bin?.[short] ?? (Object.keys(bin ?? {}).length === 1 ? Object.values(bin)[0] : undefined);
    return file && path.join(found.root, file);
}

function findProgram(name, search) {
    const isProgram = (file) => {
        try {
            fs.accessSync(file, fs.constants.X_OK);
            return fs.statSync(file).isFile();
        } catch {
            return false;
        }
    };
    return search.map((folder) => path.join(folder, name)).find(isProgram);
}

function execute(parsed, args, tool) {
    const folders = listFolders(process.cwd(), false);
    const search = folders.map((folder) => path.join(folder, '.bin')).concat((process.env.PATH ?? '').split(':').filter(Boolean));
    const env = { ...process.env, PATH: search.join(':') };
    const [command, ...rest] = parsed.rest;
    const packages = parsed.packages.map((text) => check(text, folders));
    if ((command === undefined && !parsed.call) || packages.some((item) => item.isReal)) return run(REAL[tool], args);
    if (packages.some((item) => item.isMissing)) return refuse('npx', packages);
    if (parsed.call) return run('/bin/sh', ['-c', parsed.call], env);
    const named = packages.map((item) => findBin(item.found, command)).find(Boolean);
    const plain = findProgram(command, search);
    if (packages.length) return plain ? run(plain, rest, env) : run(named ?? command, rest, env);
    const item = check(command, folders);
    if (item.isReal) return run(REAL[tool], args);
    const bin = item.found && findBin(item.found, item.found.manifest.name);
    if (bin ?? plain) return run(bin ?? plain, rest, env);
    return refuse('npx', [item]);
}

// Runs a program in place of this one, as far as its caller sees.
function run(program, args, env = process.env) {
    const isScript = /\.[cm]?js$/.test(program);
    const child = isScript ? spawn(process.execPath, [program, ...args], { env, stdio: 'inherit' }) : spawn(program, args, { env, stdio: 'inherit' });
    for (const signal of ['SIGHUP', 'SIGINT', 'SIGTERM']) process.on(signal, () => child.kill(signal));
    child.on('error', (error) => {
        console.error(`${path.basename(program)}: ${error.message}`);
        process.exitCode = 127;
    });
    child.on('exit', (code, signal) => {
        if (signal) process.removeAllListeners(signal) && process.kill(process.pid, signal);
        else process.exitCode = code;
    });
}

function hasNetwork() {
    try {
        return fs.readFileSync('/proc/net/route', 'utf8').trim().split('\n').length > 1;
    } catch {
        return false;
    }
}

function main([tool, ...args]) {
    let parsed;
    try {
        parsed = parse(tool === 'npx' ? ['exec', ...args] : args);
        const [command = ''] = parsed.words;
        if (!parsed.isReal && !hasNetwork()) {
            if (INSTALL.test(command)) return install(parsed, args, false);
            if (CLEAN_INSTALL.test(command)) return install(parsed, args, true);
            if (EXEC.test(command)) return execute(parsed, args, tool);
        }
    } catch {
        // npm says what is wrong with an argument that can't be understood.
    }
    return run(REAL[tool], args);
}

main(process.argv.slice(2));
