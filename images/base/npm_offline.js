// Runs `npm install`, `npm ci`, `npm exec` and `npx` in a workspace, which has no network. A package that the workspace
// has counts as installed, as for pip; npm would look for it in its registry. What is missing is named at once.
//
// Usage: npm_offline.js npm|npx ARGUMENT…. Everything else is left to "npm itself", the program that Debian installs.
'use strict';

const { spawn } = require('node:child_process');
const fs = require('node:fs');
const Module = require('node:module');
const path = require('node:path');

const NPM_ITSELF = { npm: '/usr/bin/npm', npx: '/usr/bin/npx' };
const INSTALL = /^(?:i|in|ins|inst|insta|instal|install|isnt|isnta|isntal|isntall|add)$/;
const CLEAN_INSTALL = /^(?:ci|clean-install|ic|install-clean|isntall-clean)$/;
const EXEC = /^(?:exec|x)$/;
// Options that lead to another place than the registry, or need a part of npm that this file does not have.
const NPM_ONLY = /^(?:--registry|--@[^:]+:registry|-w|--workspaces?|-h|--help|--globalconfig|--userconfig)(?:=|$)/;

const npmRequire = Module.createRequire(fs.realpathSync(NPM_ITSELF.npm));
const parseSpec = npmRequire('npm-package-arg');
const semver = npmRequire('semver');
const { definitions, shorthands } = loadOptions();

// Loads npm's own table of its options, which newer versions have in a package.
function loadOptions() {
    try {
        return npmRequire('@npmcli/config/lib/definitions');
    } catch {
        return npmRequire('../lib/utils/config');
    }
}

// Returns true if the value of an option is the next argument. `-p` is `--package` for npx, and nothing for install.
function takesNextArgument(option) {
    const name = option.replace(/^-+/, '');
    const long = option === '-p' ? 'package' : shorthands[name]?.length === 1 ? shorthands[name][0].replace(/^-+/, '') : name;
    // Newer versions than Debian's know the first three.
    const type = /^--(?:cpu|libc|os)$/.test(option) ? String : Object.hasOwn(definitions, long) ? definitions[long].type : Boolean;
    return ![type].flat().includes(Boolean);
}

function parseArguments(args, tool) {
    const parsed = { words: [], packages: [], rest: [], isGlobal: false, needsNpm: false };
    for (let at = 0; at < args.length; at++) {
        const [name, inline] = args[at].startsWith('--') ? args[at].split(/=(.*)/s) : [args[at]];
        if (args[at] === '--' || (!name.startsWith('-') && parsed.stopsAtWord)) {
            parsed.rest = args.slice(args[at] === '--' ? at + 1 : at);
            // npm takes the first `--` for itself, npx only one before the program.
            const end = tool === 'npm' && args[at] !== '--' ? parsed.rest.indexOf('--') : -1;
            if (end >= 0) parsed.rest.splice(end, 1);
            break;
        }
        if (!name.startsWith('-')) {
            parsed.words.push(name);
            parsed.stopsAtWord = parsed.words.length === 1 && EXEC.test(name);
            continue;
        }
        const value = inline ?? (takesNextArgument(name) ? args[++at] : undefined);
        if (NPM_ONLY.test(name)) parsed.needsNpm = true;
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

function satisfiesSpec(version, spec) {
    if (spec.type === 'tag') return spec.fetchSpec === 'latest';
    return semver.satisfies(version ?? '', spec.fetchSpec || '*', { includePrerelease: true, loose: true });
}

// Looks for what a request for a package names. An alias is found by its own name.
function checkPackage(text, folders, name) {
    const spec = name ? parseSpec.resolve(name, text) : parseSpec(text);
    const target = spec.type === 'alias' ? spec.subSpec : spec;
    if (!target.registry) return { needsNpm: true };
    const found = findPackage(spec.name, folders) ?? findPackage(target.name, folders);
    const version = found?.manifest.version;
    const asked = target.rawSpec && target.rawSpec !== '*' ? `${target.name}@${target.rawSpec}` : target.name;
    if (found && satisfiesSpec(version, target)) return { found, text: `${found.manifest.name}@${version}` };
    return { isMissing: true, package: target.name, text: found ? `${asked} (present: ${version})` : asked };
}

function reportMissing(tool, checks) {
    const missing = checks.filter((item) => item.isMissing);
    const present = checks.filter((item) => item.found).map((item) => item.text);
    const options = missing.map((item) => `--npm ${item.package}`).join(' ');
    console.error(`${tool} error network: commands have no network, so ${tool} can't get ${missing.map((item) => item.text).join(', ')}` +
        `${present.length ? `; present: ${present.join(', ')}` : ''}: packages come with the image or with the skill's package.json; ` +
        `the operator adds them by skillctl skill prepare NAME ${options}, or offers another pool`);
    process.exitCode = 1;
}

// Says which programs a package has, if none of them has its name.
function reportPrograms(item) {
    const names = Object.keys(item.found.manifest.bin ?? {});
    const advice = names.length ? `its programs are ${names.join(', ')}: run npx ${names[0]}` : 'use it by require or import';
    console.error(`npx error: ${item.text} has no program of its name: ${advice}`);
    process.exitCode = 1;
}

function installPackages(parsed, args, isClean) {
    const folder = path.resolve(parsed.folder ?? '.');
    const folders = listFolders(folder, parsed.isGlobal);
    const requests = parsed.words.slice(1).concat(parsed.rest);
    let checks;
    if (requests.length && !isClean) {
        checks = requests.map((request) => checkPackage(request, folders));
    } else {
        const manifest = readJson(path.join(folder, 'package.json'));
        if (!manifest || parsed.isGlobal || manifest.workspaces) return runProgram(NPM_ITSELF.npm, args);
        const needs = { ...manifest.devDependencies, ...manifest.dependencies };
        checks = Object.entries(needs).map(([name, range]) => checkPackage(range, folders, name));
    }
    if (checks.length === 0 || checks.some((item) => item.needsNpm)) return runProgram(NPM_ITSELF.npm, args);
    if (checks.some((item) => item.isMissing)) return reportMissing('npm', checks);
    console.log(`up to date, already there: ${checks.map((item) => item.text).join(', ')}`);
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

function executeProgram(parsed, args, tool) {
    const folders = listFolders(process.cwd(), false);
    const search = folders.map((folder) => path.join(folder, '.bin')).concat((process.env.PATH ?? '').split(':').filter(Boolean));
    const env = { ...process.env, PATH: search.join(':') };
    const [command, ...rest] = parsed.rest;
    const packages = parsed.packages.map((text) => checkPackage(text, folders));
    if ((command === undefined && !parsed.call) || packages.some((item) => item.needsNpm)) return runProgram(NPM_ITSELF[tool], args);
    if (packages.some((item) => item.isMissing)) return reportMissing('npx', packages);
    if (parsed.call) return runProgram('/bin/sh', ['-c', parsed.call], env);
    const named = packages.map((item) => findBin(item.found, command)).find(Boolean);
    const plain = findProgram(command, search);
    if (packages.length) return plain ? runProgram(plain, rest, env) : runProgram(named ?? command, rest, env);
    const item = checkPackage(command, folders);
    if (item.needsNpm) return runProgram(NPM_ITSELF[tool], args);
    const bin = item.found && findBin(item.found, item.found.manifest.name);
    if (bin ?? plain) return runProgram(bin ?? plain, rest, env);
    return item.found ? reportPrograms(item) : reportMissing('npx', [item]);
}

// Runs a program in place of this one, as far as its caller sees.
function runProgram(program, args, env = process.env) {
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
        parsed = parseArguments(tool === 'npx' ? ['exec', ...args] : args, tool);
        const [command = ''] = parsed.words;
        if (!parsed.needsNpm && !hasNetwork()) {
            if (INSTALL.test(command)) return installPackages(parsed, args, false);
            if (CLEAN_INSTALL.test(command)) return installPackages(parsed, args, true);
            if (EXEC.test(command)) return executeProgram(parsed, args, tool);
        }
    } catch {
        // npm says what is wrong with an argument that can't be understood.
    }
    return runProgram(NPM_ITSELF[tool], args);
}

main(process.argv.slice(2));
