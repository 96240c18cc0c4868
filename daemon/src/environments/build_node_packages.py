"""Installs the Node.js packages of one folder of a skill with the image's npm.

npm reads the fields of package.json that name packages, the lock file and the skill's own packages, and no other
configuration: none of the image, and no .npmrc of the skill. No script of any package runs. The daemon runs this file
between `redirect_wheels.py` and `build_environment.py`, as one program.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Folders of the image's packages, in the order in which commands search them.
IMAGE_MODULES = ("/usr/local/lib/node_modules", "/usr/share/nodejs", "/usr/lib/nodejs")
NPM_PLACES = ("/usr/share/nodejs/npm/", "/usr/local/lib/node_modules/npm/", "/usr/lib/node_modules/npm/")
PACKAGE_NAME = re.compile(r"(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*", re.IGNORECASE)
DEPENDENCY_FIELDS = ("dependencies", "devDependencies", "optionalDependencies", "peerDependencies")
# Other fields of the skill's package.json that npm gets. It gets no scripts, publishConfig, packageManager or config.
KEPT_FIELDS = ("peerDependenciesMeta", "bundleDependencies", "bundledDependencies", "overrides", "workspaces")
INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
MANIFEST_BYTES_MAX = 1 << 20
LOCAL_COPIES_MAX = 500
# Compares versions with npm's own module: reads [places, [[version, range], …]], writes [Node's version, [true, …]].
SATISFIES = """
const { createRequire } = require('module');
const [places, pairs] = JSON.parse(require('fs').readFileSync(0, 'utf8'));
let semver;
for (const place of places) { try { semver ??= createRequire(place)('semver'); } catch {} }
const options = { includePrerelease: true };
const fits = ([version, range]) => String(range).length <= 256 && semver.satisfies(version ?? process.version, range, version ? {} : options);
console.log(JSON.stringify([process.version, pairs.map(fits)]));
"""
# Messages of npm that name a package, as (pattern, group 1).
NAMED_PACKAGE = re.compile(
    r"'([^'\s]+)' is not in this registry|resource '([^'\s]+)' could not be found|"
    r"No matching version found for (\S+?)\.?(?:\s|$)|Unsupported platform for (\S+?):|Unsupported URL Type \"[^\"]*\": (\S+)"
)
URL = re.compile(r"https?://[^\s'\"]+")
# Sentences for npm's codes that are faults of the need. {package}, {file} and {lock} are names.
NEED_SENTENCES = {
    "E404": "the index has no package {package}: correct its name or version in {file}",
    "ETARGET": "the index has no version of package {package}: choose one that exists in {file}",
    "EINTEGRITY": "package {package} has another hash than {lock} says: write the lock file anew with `npm install`",
    "EBADPLATFORM": "package {package} is not for this system or processor: make it one of the optionalDependencies",
    "ENOTCACHED": "the image lacks {package}, and no index is configured: use an image that has it, or let the operator "
                  "set skills.node_package_index",
    "EJSONPARSE": "a package.json or lock file of {file} is not valid JSON: correct it",
    "EUNSUPPORTEDPROTOCOL": "package {package} has an address that npm does not know: use packages of an index",
}  # fmt: skip
# Codes whose first line says all.
NEED_CODES = {"EINVALIDPACKAGENAME", "EINVALIDTAGNAME", "EOVERRIDE", "EWORKSPACESCONFIG", "ENOENT"}
REFUSED_CODES = {"E401", "E403"}
NETWORK_CODES = re.compile(
    r"ECONN\w+|E?\w*TIME(?:D)?OUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|EPIPE|FETCH_ERROR|EPROTO|"
    r"ERR_INVALID_PROTOCOL|E429|E5\d\d|\w*(?:CERT|ISSUER|SIGNATURE)\w*"
)


class NodeProject:
    """One folder of a skill with a package.json: its files, and the install of its packages."""

    def __init__(self, builder, number, folder, has_added=False, inferred=()):
        self.builder = builder
        self.root = builder.source / "node" / str(number)
        self.folder = self.root / folder
        self.file = f"{folder}/package.json".lstrip("/")
        self.lock_file = f"{folder}/package-lock.json".lstrip("/")
        self.modules = self.folder / "node_modules"
        self.target = builder.tree / "node" / str(number) / "node_modules"
        # True if packages were added to the manifest that the lock file does not name.
        self.has_added = has_added
        # Names of the packages that were inferred from the skill's text.
        self.inferred = inferred
        self.index_url = builder.options.get("node_index_url")
        self.copies = 0

    def install(self):
        """Installs the packages, and moves them into the environment's tree."""
        self.remove_configuration()
        # The daemon has checked both files.
        self.manifest, self.locked = read_manifest(self.folder), {}
        lock = self.folder / "package-lock.json"
        if lock.is_file():
            self.install_locked(json.loads(lock.read_text(encoding="utf-8-sig"))["packages"])
        else:
            self.install_unlocked()
        self.modules.mkdir(exist_ok=True)
        packages = self.read_installed()
        self.copy_local_packages()
        self.report_packages(packages)
        self.report_absent()
        self.target.parent.mkdir(parents=True)
        self.modules.rename(self.target)

    def remove_configuration(self):
        """Removes files of the skill that would configure npm, and packages that the skill brings installed."""
        for folder, folders, files in os.walk(self.root):
            for name in {".npmrc", "npm-shrinkwrap.json"}.intersection(files):
                os.unlink(os.path.join(folder, name))
            if "node_modules" in folders:
                folders.remove("node_modules")
                shutil.rmtree(os.path.join(folder, "node_modules"))

    def install_locked(self, locked):
        """Installs the packages of the lock file, and others only if they were added to it."""
        if not self.index_url and self.is_locked_in_image(locked):
            return self.add_provided({name: locked[f"node_modules/{name}"]["version"] for name in self.direct_names()})
        report(f"installing the packages of {self.lock_file}")
        self.write_manifest({})
        # The lock does not name packages that were added: `install` keeps what it pins and resolves the others.
        command = ("install", "--no-save") if self.has_added else ("ci",)
        succeeded, output = self.run_npm(*command)
        if not succeeded and re.search(r"^npm \S+ code ERESOLVE$", output, re.MULTILINE):
            # The lock was written without a look at peer dependencies, and the lock decides.
            succeeded, output = self.run_npm(*command, "--legacy-peer-deps")
        if not succeeded:
            raise self.failure(output, locked)
        self.locked = locked

    def direct_names(self):
        """Returns the names of all packages that the skill asks for."""
        return dict.fromkeys(name for field in DEPENDENCY_FIELDS for name in self.dependencies(field))

    def is_locked_in_image(self, locked):
        """Returns True if the image has each direct package in the locked version, with what the image installed for it."""
        place, names = Path(IMAGE_MODULES[0]), self.direct_names()
        versions = {name: locked.get(f"node_modules/{name}", {}).get("version") for name in names}
        return not self.manifest.get("workspaces") and all(
            PACKAGE_NAME.fullmatch(name) and version and read_version(place, name) == version
            for name, version in versions.items()
        )

    def add_provided(self, provided):
        """Adds packages of the image to the report, by their version."""
        for name, version in sorted(provided.items()):
            item = {"name": name, "version": version}
            if item not in self.builder.result["node_provided"]:
                self.builder.result["node_provided"].append(item)

    def install_unlocked(self):
        """Installs what the image lacks of the dependencies, in the versions that npm chooses today."""
        provided = self.find_provided()
        if not self.index_url:
            self.require_provided(provided)
        for left_out in (provided, {}) if provided else ({},):
            if not self.write_manifest(left_out):
                break
            report(f"resolving and installing the packages of {self.file}")
            shutil.rmtree(self.modules, ignore_errors=True)
            succeeded, output = self.run_npm("install", "--no-package-lock", "--no-save")
            if not succeeded:
                raise self.failure(output, {})
            # Another package may have brought a version that the skill does not want, and it would come first.
            found = {name: read_version(self.modules, name) for name in left_out}
            pairs = [(version, self.range_of(name)) for name, version in found.items() if version]
            if all(self.satisfies(pairs)[1]):
                provided = {name: version for name, version in left_out.items() if not found[name]}
                break
        if self.modules.is_dir() and not self.has_added:
            self.builder.warn(f"{self.file} has no package-lock.json: another build may install other versions")
        self.add_provided(provided)

    def dependencies(self, field):
        """Returns one of the manifest's tables of packages."""
        table = self.manifest.get(field)
        return {name: str(wanted) for name, wanted in table.items()} if isinstance(table, dict) else {}

    def range_of(self, name):
        """Returns the versions that the skill wants of a package."""
        wanted = next(table[name] for table in map(self.dependencies, DEPENDENCY_FIELDS) if name in table)
        # Without an index, the newest version is that of the image.
        return "*" if wanted in ("", "latest") and not self.index_url else wanted

    def find_provided(self):
        """Returns the version of each direct dependency that the image has in a fitting version."""
        if self.manifest.get("overrides"):
            return {}  # They may name any dependency.
        names = self.direct_names()
        # Packages of Debian may lack programs and types, so that an index is preferred to them.
        folders = IMAGE_MODULES[:1] if self.index_url else IMAGE_MODULES
        found = {}
        for name in names:
            versions = (read_version(Path(folder), name) for folder in folders if PACKAGE_NAME.fullmatch(name))
            if version := next(filter(None, versions), None):
                found[name] = version
        fits = self.satisfies([(version, self.range_of(name)) for name, version in found.items()])[1]
        return {name: version for (name, version), is_fitting in zip(found.items(), fits) if is_fitting}

    def require_provided(self, provided):
        """Checks that the image has all that an index would have to bring."""
        def lacking(field):
            table = self.dependencies(field)
            return sorted(name for name in table if name not in provided and not is_local(table[name]))

        if names := lacking("dependencies"):
            raise NeedError(NEED_SENTENCES["ENOTCACHED"].format(package=", ".join(names)[:REASON_MAX]))
        for field in DEPENDENCY_FIELDS[1:]:
            if names := lacking(field):
                self.manifest[field] = {
                    name: wanted for name, wanted in self.dependencies(field).items() if name not in names
                }
                self.builder.warn(f"{self.file}: no index is configured, so {field} are left out: {', '.join(names)}")

    def write_manifest(self, left_out):
        """Writes package.json for npm, without some of the dependencies; returns True if it names packages."""
        content = {key: self.manifest[key] for key in KEPT_FIELDS if self.manifest.get(key)}
        for field in DEPENDENCY_FIELDS:
            if table := {name: item for name, item in self.dependencies(field).items() if name not in left_out}:
                content[field] = table
        (self.folder / "package.json").write_text(json.dumps(content), encoding="utf-8")
        return bool({*DEPENDENCY_FIELDS, "workspaces"}.intersection(content))

    def run_npm(self, command, *options):
        """Runs npm in the project's folder, and returns its success and its output."""
        folder = self.builder.folder
        return self.builder.run_tool(
            "npm", command, *options, f"--prefix={self.folder}",
            # Files that do not exist. npm refuses to read one twice.
            f"--userconfig={folder / 'user.npmrc'}", f"--globalconfig={folder / 'global.npmrc'}",
            # --ignore-scripts alone would run `prepare` of the skill's own packages, and git runs hooks.
            "--ignore-scripts", "--script-shell=/bin/true", "--git=/bin/false", "--no-install-links",
            "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error", "--logs-max=0",
            f"--cache={folder / 'npm-cache'}", "--fetch-timeout=60000", "--fetch-retries=1",
            "--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=1000",
            *(["--no-offline", f"--registry={self.index_url}"] if self.index_url else ["--offline"]),
            working_directory=self.folder,
        )  # fmt: skip

    def satisfies(self, pairs):
        """Returns Node's version, and for each pair of a version (None is Node's) and a range whether they fit."""
        if not pairs:
            return "", []
        # The image may have a script in place of npm.
        places = [os.path.realpath(self.builder.find_tool("npm")), *NPM_PLACES]
        process = subprocess.run(
            [self.builder.find_tool("node"), "-e", SATISFIES], env=self.builder.variables,
            input=json.dumps([places, pairs]).encode(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if process.returncode != 0:
            return "", [version is None for version, _ in pairs]
        return json.loads(process.stdout)

    def read_installed(self):
        """Returns the entries of npm's own list of what it installed, by their path."""
        listing = self.modules / ".package-lock.json"
        if not listing.is_file():
            return {}
        packages = json.loads(listing.read_text(encoding="utf-8"))["packages"]
        listing.unlink()
        return packages

    def report_packages(self, packages):
        """Adds the installed packages to the report, and warns of those that may not work."""
        result, wanted = self.builder.result["node_packages"], [(self.file, self.manifest)]
        for place, item in sorted(packages.items()):
            if not place.startswith("node_modules/"):
                continue  # Files of a link, which is listed itself.
            name, folder = installed_name(place), self.folder / place
            manifest = read_manifest(folder)
            version = str(item.get("version") or manifest.get("version") or "")
            if (expected := self.locked.get(place, {}).get("version")) and expected != version:
                self.builder.warn(f"{self.lock_file} does not fit {self.file}: {name} is {version}, not {expected}")
            built = {"name": name, "version": version, "hashes": str(item.get("integrity", "")).split()}
            if built not in result:
                result.append(built)
            scripts = manifest.get("scripts")
            has_script = isinstance(scripts, dict) and any(scripts.get(key) for key in INSTALL_SCRIPTS)
            binaries = manifest.get("optionalDependencies")
            names = binaries if isinstance(binaries, dict) else ()
            has_binary = any((self.modules / item).is_dir() for item in names)
            if (has_script or (folder / "binding.gyp").is_file()) and not has_binary:
                self.builder.warn(f"{name} has an install script, which was not run; it may lack its binary")
            wanted.append((f"{name} {version}".strip(), manifest))
        engines = [(name, item.get("engines")) for name, item in wanted]
        engines = [(name, table["node"]) for name, table in engines if isinstance(table, dict) and "node" in table]
        present, fits = self.satisfies([(None, str(range_)) for _, range_ in engines])
        for (name, range_), is_fitting in zip(engines, fits):
            if not is_fitting:
                self.builder.warn(f"{name} wants Node.js {range_}, and the image has {present}: it may fail")

    def report_absent(self):
        """Names the inferred packages that npm could not install; they are optional."""
        provided = {item["name"] for item in self.builder.result["node_provided"]}
        absent = {name for name in self.inferred if not (self.modules / name).is_dir()} - provided
        if absent:
            names = ", ".join(sorted(absent))
            self.builder.warn(f"left out: {names} (inferred from the skill's text and not installable)")

    def copy_local_packages(self):
        """Replaces npm's links to packages of the skill by copies: the environment is used without the skill."""
        for link in list_package_links(self.root):
            target = link.resolve()
            link.unlink()
            link.symlink_to(target)
        self.replace_links(self.modules, ())
        for program in list_links(self.modules):
            # The package lacks the file that it names as its program.
            if not program.is_file() or self.modules not in program.resolve().parents:
                program.unlink()

    def replace_links(self, folder, chain):
        """Replaces the links beneath a folder; `chain` are the packages that it is a copy of."""
        for link in list_package_links(folder):
            target = Path(os.readlink(link))
            name = link.relative_to(self.modules)
            if self.root not in target.parents or target in (self.folder, *self.folder.parents) or not target.is_dir():
                raise NeedError(f"{self.file}: package {name} leads out of its folder: copy it into the skill's folder")
            link.unlink()
            # A package of a cycle is in a node_modules folder further up.
            if target in chain:
                continue
            self.copies += 1
            if self.copies > LOCAL_COPIES_MAX:
                raise NeedError(f"{self.file}: the skill's own packages need each other too often: simplify them")
            if self.folder not in target.parents and read_manifest(target).get("dependencies"):
                remark = f"npm installs no dependencies of {name}, which is in another folder: name them too"
                self.builder.warn(f"{self.file}: {remark}")
            shutil.copytree(target, link, symlinks=True)
            self.replace_links(link, (*chain, target))

    def failure(self, output, locked):
        """Returns the error that npm's messages describe."""
        lines = [match[1] for match in re.finditer(r"^npm (?:ERR!|error) ?(.*)", output, re.MULTILINE)]
        code = next((line.split()[1] for line in lines if re.match(r"code \S", line)), "")
        noise = re.compile(r"(code|errno|syscall|type|path|dest|cwd|gitErrno) |\s+at |A complete log|\s*$")
        lines = [re.sub(rf"^({re.escape(code[1:])}|{re.escape(code)}|notarget|network) +", "", line) for line in lines]
        lines = [line for line in lines or output.splitlines() if not noise.match(line)]
        text = "\n".join(lines)
        package = named_package(text, self.index_url)
        if code == "EINTEGRITY" and (match := re.search(r"wanted (sha[0-9]+-\S+)", text)):
            # npm names the hash only.
            names = [installed_name(path) for path, item in locked.items() if item.get("integrity") == match[1]]
            package = ", ".join(names) or package
        if code == "ENOTCACHED" and locked:
            advice = "use an image that has all packages that it names in the locked versions"
            setting = "or let the operator set skills.node_package_index"
            return NeedError(f"no index is configured for {self.lock_file}: {advice}, {setting}")
        if code in NEED_SENTENCES:
            return NeedError(NEED_SENTENCES[code].format(package=package, file=self.file, lock=self.lock_file))
        first = quote_reason(lines[0].removeprefix("FetchError: ")[:REASON_MAX]) if lines else "npm wrote no message"
        if code in REFUSED_CODES:
            return BuildError(f"the index refuses package {package} ({code[1:]}): ask its operator for access")
        if NETWORK_CODES.fullmatch(code):
            url = next(iter(URL.findall(text)), self.index_url or "")
            return BuildError(f"{split_url(url).netloc} did not answer as it should ({code}): {first}: try again later")
        if code == "ERESOLVE":
            found = [line.strip() for line in lines if re.match(r"\s*(Found: |peer\w* |dev |Conflicting peer)", line)]
            reason = quote_reason("; ".join(found[:3]))
            return NeedError(f"the packages of {self.file} do not fit together: {reason}: choose versions that do")
        if code == "EUSAGE":
            out_of_sync = [line for line in lines if re.match("(Missing|Invalid): ", line)]
            reason = quote_reason("; ".join(out_of_sync[:5])) if out_of_sync else first
            return NeedError(f"{self.lock_file} does not fit {self.file}: {reason}: write it anew with `npm install`")
        if code in NEED_CODES:
            return NeedError(f"{self.file}: {first}: correct it")
        if re.search(r"ls-remote|(^|\s|/)git\s", text):
            repository = next(iter(re.findall(r" ls-remote .*?(\S+[:/]\S+)", text)), "a repository")
            return NeedError(f"a package of {self.file} comes from {repository[:200]}: use packages of an index")
        return BuildError(f"npm failed: {f'{code}: ' if code else ''}{first}")


def named_package(text, index_url):
    """Returns the package that a message of npm names, with its version if that matters."""
    if match := NAMED_PACKAGE.search(text):
        return next(filter(None, match.groups()))[:200]
    for url in URL.findall(text):
        base = split_url(index_url or "https://registry.npmjs.org").path.strip("/")
        path = unquote(split_url(url).path).strip("/").removeprefix(base).strip("/")
        if PACKAGE_NAME.fullmatch(name := path.partition("/-/")[0]):
            return name[:200]
    return "of unknown name"


def split_url(url):
    """Returns the parts of a URL, which are empty if a message of npm has something else in its place."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def installed_name(path):
    """Returns the name of the package at a path of a lock file."""
    return path.rpartition("node_modules/")[2]


def is_local(wanted):
    """Returns True if a dependency is a package of the skill's own folder."""
    return wanted.startswith(("file:", "link:", "workspace:", ".", "/"))


def read_manifest(folder):
    """Returns the package.json of an installed package, or {} if it has none of a usual size."""
    try:
        with open(folder / "package.json", "rb") as file:
            content = json.loads(file.read(MANIFEST_BYTES_MAX).decode("utf-8-sig", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_version(folder, name):
    """Returns the version of a package in a folder of packages; None if it is not there."""
    version = read_manifest(folder / name).get("version")
    return version if isinstance(version, str) else None


def list_links(folder):
    """Returns the links beneath a folder."""
    found = []
    for place, folders, files in os.walk(folder):
        found += [Path(place, name) for name in (*folders, *files) if os.path.islink(os.path.join(place, name))]
    return found


def list_package_links(folder):
    """Returns the links to packages beneath a folder; the others are programs of packages."""
    return [link for link in list_links(folder) if link.parent.name != ".bin"]
