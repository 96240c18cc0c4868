//! Signs in a command's output of what a workspace does not have: a network, packages, room.

use memchr::memmem;

/// Parts of messages about a network that does not answer, in lower case.
const NETWORK_SIGNS: [&str; 31] = [
    // Name lookups, as libraries and programs report them.
    "temporary failure in name resolution",
    "temporary failure resolving",
    "name or service not known",
    "could not resolve host",
    "unable to resolve host",
    "failed to resolve",
    "getaddrinfo enotfound",
    "getaddrinfo eai_again",
    "no address associated with hostname",
    "dns error",
    "dial tcp: lookup",
    "no such host",
    "unknownhostexception",
    "network is unreachable",
    "enetunreach",
    "failed to establish a new connection",
    // pip and uv, which are told that they have none.
    "no matching distribution found for",
    "could not find a version that satisfies the requirement",
    "network was disabled",
    "network connectivity is disabled",
    // npm, and programs of other package managers that find no registry.
    "npm error network",
    "npx error network",
    "err_pnpm_meta_fetch_fail",
    // Browsers.
    "err_name_not_resolved",
    "err_internet_disconnected",
    "err_address_unreachable",
    // gem.
    "unable to download data",
    // apt-get, which has neither a network nor the right to install.
    "unable to fetch some archives",
    "unable to acquire the dpkg frontend lock",
    "could not open lock file /var/lib/dpkg/",
    "could not open lock file /var/lib/apt/",
];
/// Text of curl and git about an address that they cannot reach, in lower case; a host and `port` follow it.
const CONNECT_SIGN: &str = "failed to connect to ";
/// Beginnings of the hosts of servers in the workspace itself.
const LOCAL_HOSTS: [&str; 4] = ["localhost", "127.", "::1", "0.0.0.0"];
/// Warning about a network that a command wanted.
const NETWORK_WARNING: &str = "commands have no network: pip, npm, npx, pnpm, yarn, uv, git clone and downloads fail. Use \
     what is installed, and files of the workspace. Packages that a skill names in requirements.txt, pyproject.toml or \
     package.json are installed for it by the operator, who can also add some: skillctl skill prepare NAME --package \
     PYTHON_PACKAGE --npm NODE_PACKAGE";
/// Parts of messages about a missing module or program, in lower case.
const PACKAGE_SIGNS: [&str; 6] = [
    "modulenotfounderror",
    "no module named",
    "importerror",
    "cannot find module",
    "cannot find package",
    "command not found",
];
/// Parts of messages about a file system without room. The first lacks its first letter, which C writes as `N` and Go as
/// `n`.
const ROOM_SIGNS: [&str; 3] = ["o space left on device", "ENOSPC", "enospc"];
/// Warning about a file system that had no room for a while.
const ROOM_WARNING: &str = "a file system was full while this ran: /tmp is small, so set TMPDIR=$WORK_DIR for large \
     temporary files, and delete files that are no longer needed";

/// Returns a warning if a command tried to use a network.
pub(super) fn network_warning(streams: &[&str]) -> Option<String> {
    let mut lines = streams.iter().flat_map(|stream| stream.lines());
    let is_unreachable = |line: &str| {
        let line = line.to_ascii_lowercase();
        let host = line
            .split_once(CONNECT_SIGN)
            .map(|(_, host)| host)
            .filter(|host| host.contains(" port "))
            .map(|host| host.trim_start_matches('['));
        host.is_some_and(|host| !LOCAL_HOSTS.iter().any(|local| host.starts_with(local)))
    };
    let wants_network = shows_sign(streams, &NETWORK_SIGNS) || lines.any(is_unreachable);
    wants_network.then(|| NETWORK_WARNING.to_owned())
}

/// Returns a warning if a command reports that a file system has no room.
pub(super) fn room_warning(streams: &[&str]) -> Option<String> {
    let is_full = streams.iter().any(|stream| lacks_room(stream.as_bytes()));
    is_full.then(|| ROOM_WARNING.to_owned())
}

/// Returns `true` if output reports that a file system has no room. The result of an exec does not say so if the
/// program's temporary files are gone at its end. What shows it has at most 64 bytes.
pub fn lacks_room(output: &[u8]) -> bool {
    let mut signs = ROOM_SIGNS.iter();
    signs.any(|sign| memmem::find(output, sign.as_bytes()).is_some())
}

/// Returns `true` if a command reports a missing module or program. Its exit code may be that of another program in a
/// pipeline.
pub(crate) fn lacks_package(streams: &[&str]) -> bool {
    shows_sign(streams, &PACKAGE_SIGNS)
}

fn shows_sign(streams: &[&str], signs: &[&str]) -> bool {
    streams.iter().any(|stream| {
        let text = stream.to_ascii_lowercase();
        signs.iter().any(|sign| text.contains(sign))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_download_says_that_there_is_no_network() {
        for line in [
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError(\"<pip._vendor...>: \
             Failed to establish a new connection: [Errno -3] Temporary failure in name resolution\")': /simple/x/",
            "ERROR: No matching distribution found for left-pad",
            "npm error network request to https://registry.npmjs.org/x failed, reason: getaddrinfo ENOTFOUND registry.npmjs.org",
            "npm ERR! request to https://registry.npmjs.org/x failed, reason: getaddrinfo EAI_AGAIN registry.npmjs.org",
            "npm error network: commands have no network, so npm can't get x: packages come with the image",
            "npx error network: commands have no network, so npx can't get x: packages come with the image",
            " ERR_PNPM_META_FETCH_FAIL  GET https://registry.npmjs.org/x: request to https://registry.npmjs.org/x failed",
            "error Error: getaddrinfo EAI_AGAIN registry.yarnpkg.com",
            "hint: Packages were unavailable because the network was disabled.",
            "fatal: unable to access 'https://a.example/x.git/': Could not resolve host: a.example",
            "curl: (6) Could not resolve host: a.example",
            "wget: unable to resolve host address 'a.example'",
            "socket.gaierror: [Errno -2] Name or service not known",
            "OSError: [Errno 101] Network is unreachable",
            "Error: connect ENETUNREACH 192.0.2.1:443 - Local (0.0.0.0:0)",
            "java.net.UnknownHostException: a.example",
            "curl: (7) Failed to connect to 192.0.2.1 port 443 after 0 ms: Couldn't connect to server",
            "fatal: unable to access 'https://192.0.2.1/x.git/': Failed to connect to 192.0.2.1 port 443",
            "curl: (7) Failed to connect to 192.127.3.4 port 443 after 0 ms: Couldn't connect to server",
            "curl: (7) Failed to connect to 2001:db8::1 port 443 after 0 ms: Couldn't connect to server",
            "Error: page.goto: net::ERR_NAME_NOT_RESOLVED at https://a.example/",
            "ERROR:  Could not find a valid gem 'x' (>= 0), here is why: Unable to download data from https://rubygems.org/",
            "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
        ] {
            for streams in [[line, ""], ["", line]] {
                let warning = network_warning(&streams).expect(line);
                assert!(
                    warning.starts_with("commands have no network: "),
                    "{warning}"
                );
            }
        }
        for line in [
            "",
            "error: 404",
            "ConnectionRefusedError: [Errno 111] Connection refused",
            "curl: (7) Failed to connect to localhost port 8123 after 0 ms: Couldn't connect to server",
            "curl: (7) Failed to connect to [::1] port 8123 after 0 ms: Couldn't connect to server",
            "Failed to connect to bus: No such file or directory",
        ] {
            assert_eq!(network_warning(&[line]), None, "{line}");
        }
    }

    #[test]
    fn a_missing_module_is_recognised_on_either_stream() {
        assert!(lacks_package(&[
            "ModuleNotFoundError: No module named 'x'",
            ""
        ]));
        assert!(lacks_package(&[
            "",
            "bash: line 1: pdftotext: command not found"
        ]));
        assert!(!lacks_package(&["done", "1 warning"]));
    }
}
