//! Findings about an image: from its description and from the commands that ran in it. Pure.

use skilld_common::excerpts::join_first;

use super::ImageProbes;
use crate::engine::ImageInfo;
use crate::engine::image_reference::ImageReference;
use crate::exec::ImageEnvironment;

/// Maximum number of names in one finding.
const NAMES_MAX: usize = 10;
/// Programs that skills often use: names of which one suffices, and what does not run without it.
const COMMON_PROGRAMS: [(&[&str], &str); 6] = [
    (&["python3"], "Python scripts do not run"),
    (&["node"], "JavaScript programs do not run"),
    (
        &["uv"],
        "scripts that name their packages in their first lines (PEP 723) do not run",
    ),
    (
        &["pip", "pip3"],
        "packages of Python can't be listed or installed",
    ),
    (&["git"], "skills that look into repositories do not run"),
    (&["rg"], "searches with ripgrep do not run; grep may do"),
];

/// Finding about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFinding {
    /// Stable code, for programs.
    pub code: &'static str,
    /// `true` if a pool can't use the image, or most skills can't run in it.
    pub is_error: bool,
    /// Description and remedy, for people.
    pub message: String,
}

impl ImageFinding {
    /// Makes a finding that is an error.
    pub(super) fn error(code: &'static str, message: String) -> Self {
        let is_error = true;
        Self {
            code,
            is_error,
            message,
        }
    }

    fn warning(code: &'static str, message: String) -> Self {
        let is_error = false;
        Self {
            code,
            is_error,
            message,
        }
    }
}

/// Returns the findings of an image's description. A container is started only if none is an error.
pub(super) fn description_findings(
    image: &ImageInfo,
    reference: &ImageReference,
) -> Vec<ImageFinding> {
    let mut findings = Vec::new();
    if let Some(why) = image.fault(reference) {
        findings.push(ImageFinding::error("image.unusable", why));
    }
    let host = host_architecture();
    if !image.architecture.is_empty() && image.architecture != host {
        let message = format!(
            "it is for {}, and this host is {host}: build it for linux/{host}",
            image.architecture
        );
        findings.push(ImageFinding::error("image.other_architecture", message));
    }
    if image.has_entrypoint {
        let message = "its ENTRYPOINT is not run: skilld starts its guest instead".to_owned();
        findings.push(ImageFinding::warning("image.entrypoint_ignored", message));
    }
    findings.extend(environment_findings(&image.env));
    findings
}

/// Returns the findings of an image's variables that commands do not get. Values may be secrets, so only those of PATH
/// are shown.
fn environment_findings(env: &[String]) -> Vec<ImageFinding> {
    let taken = ImageEnvironment::new(env);
    let path = taken.path();
    let is_searched = |dir: &&str| dir.is_empty() || path.split(':').any(|known| known == *dir);
    let is_taken = |name: &str| name == "PATH" || taken.variables().any(|(known, _)| known == name);
    let pairs = || env.iter().filter_map(|pair| pair.split_once('='));
    let mut findings = Vec::new();
    let paths = pairs().filter(|(name, _)| *name == "PATH");
    let ignored: Vec<&str> = paths
        .flat_map(|(_, value)| value.split(':'))
        .filter(|dir| !is_searched(dir))
        .collect();
    if !ignored.is_empty() {
        let message = format!(
            "its PATH has {}, which commands do not search, because commands can write there or it is no absolute path \
             of the image: install the programs elsewhere",
            list_names(&ignored)
        );
        findings.push(ImageFinding::warning("image.path_ignored", message));
    }
    let names: Vec<&str> = pairs()
        .map(|(name, _)| name)
        .filter(|name| !is_taken(name))
        .collect();
    if !names.is_empty() {
        let message = format!(
            "commands do not get its variables {}: a name has letters, digits and _, and all variables together have at \
             most 32 KiB",
            list_names(&names)
        );
        findings.push(ImageFinding::warning("image.env_ignored", message));
    }
    findings
}

/// Returns the findings of the commands that ran in a container of the image.
pub(super) fn probe_findings(probes: &ImageProbes) -> Vec<ImageFinding> {
    let mut findings = Vec::new();
    let shells = [
        ("image.no_sh", "sh", &probes.sh_fault),
        ("image.no_bash", "bash", &probes.bash_fault),
    ];
    for (code, shell, fault) in shells {
        if let Some(fault) = fault {
            let message = format!(
                "{shell} does not work, so shell commands of skills fail: {fault}; install {shell}"
            );
            findings.push(ImageFinding::error(code, message));
        }
    }
    if let (Some(fault), None) = (&probes.write_fault, &probes.sh_fault) {
        let message = format!("a command cannot write to /workspace/work and /tmp: {fault}");
        findings.push(ImageFinding::error("image.not_writable", message));
    }
    for (names, consequence) in COMMON_PROGRAMS {
        let name = names.first().copied().unwrap_or_default();
        if !names.iter().any(|name| probes.programs.contains(*name)) {
            let message = format!("{name} is missing: {consequence}");
            findings.push(ImageFinding::warning("image.program_missing", message));
        } else if name == "python3"
            && let Err(fault) = &probes.python
        {
            let message = format!("python3 does not work: {fault}");
            findings.push(ImageFinding::warning("image.python_broken", message));
        }
    }
    if !probes.charmap.is_empty() && probes.charmap != "UTF-8" {
        let message = format!(
            "the locale C.UTF-8 is missing (the character set is {}): text that is not ASCII may break",
            probes.charmap
        );
        findings.push(ImageFinding::warning("image.no_utf8_locale", message));
    }
    findings.extend(setuid_finding(probes));
    findings
}

/// Returns the finding about programs with the setuid or setgid bit.
fn setuid_finding(probes: &ImageProbes) -> Option<ImageFinding> {
    match &probes.setuid_programs {
        Ok(paths) if paths.is_empty() => None,
        Ok(paths) => {
            let names: Vec<&str> = paths.iter().map(String::as_str).collect();
            let message = format!(
                "it has setuid programs, which get no rights in a container: remove the bits of {}",
                list_names(&names)
            );
            Some(ImageFinding::warning("image.setuid_programs", message))
        }
        // Another finding says that there is no shell.
        Err(_) if probes.sh_fault.is_some() => None,
        Err(fault) => {
            let message = format!(
                "it was not searched for setuid programs, which get no rights in a container: {fault}"
            );
            Some(ImageFinding::warning("image.setuid_unknown", message))
        }
    }
}

fn list_names(names: &[&str]) -> String {
    join_first(names.iter().copied(), NAMES_MAX)
}

/// Returns this host's architecture by the name that images use.
fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn codes(findings: &[ImageFinding]) -> Vec<(&'static str, bool)> {
        let codes = findings.iter();
        codes
            .map(|finding| (finding.code, finding.is_error))
            .collect()
    }

    fn reference() -> ImageReference {
        ImageReference::parse("an/image:1").expect("valid")
    }

    fn image() -> ImageInfo {
        ImageInfo {
            architecture: host_architecture().to_owned(),
            ..ImageInfo::default()
        }
    }

    fn working_probes() -> ImageProbes {
        let programs = ["python3", "node", "uv", "pip3", "git", "rg"];
        ImageProbes {
            programs: programs.map(str::to_owned).into_iter().collect(),
            python: Ok("3.13.5".to_owned()),
            charmap: "UTF-8".to_owned(),
            ..ImageProbes::default()
        }
    }

    #[test]
    fn complete_image_has_no_finding() {
        assert_eq!(description_findings(&image(), &reference()), []);
        assert_eq!(probe_findings(&working_probes()), []);
    }

    #[test]
    fn a_timed_out_setuid_search_is_no_clean_result() {
        let probes = ImageProbes {
            setuid_programs: Err("it took longer than 10s".to_owned()),
            ..working_probes()
        };
        let findings = probe_findings(&probes);
        assert_eq!(codes(&findings), [("image.setuid_unknown", false)]);
        assert!(findings[0].message.contains("longer than 10s"));
    }

    #[test]
    fn volume_and_other_architecture_are_errors() {
        let image = ImageInfo {
            volumes: vec!["/data".to_owned()],
            architecture: "s390x".to_owned(),
            ..image()
        };
        let findings = description_findings(&image, &reference());
        assert_eq!(
            codes(&findings),
            [("image.unusable", true), ("image.other_architecture", true)]
        );
        assert_eq!(
            findings[0].message,
            "it declares VOLUME /data: build it without volumes"
        );
    }

    #[test]
    fn ignored_image_settings_are_warnings_without_values() {
        let image = ImageInfo {
            has_entrypoint: true,
            env: [
                "PATH=/opt/conda/bin:/tmp/bin:/usr/bin:",
                "TOKEN=swordfish",
                "MY-TOKEN=swordfish",
                "LANG=C",
                "odd",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..image()
        };
        let findings = description_findings(&image, &reference());
        let expected = [
            ("image.entrypoint_ignored", false),
            ("image.path_ignored", false),
            ("image.env_ignored", false),
        ];
        assert_eq!(codes(&findings), expected);
        let text = format!("{findings:?}");
        assert!(text.contains("its PATH has /tmp/bin, which"), "{text}");
        assert!(
            text.contains("variables MY-TOKEN: ") && !text.contains("swordfish"),
            "{text}"
        );
    }

    #[test]
    fn missing_shells_are_errors_and_missing_programs_warnings() {
        let fault = Some("it cannot be run (ENOENT)".to_owned());
        let probes = ImageProbes {
            sh_fault: fault.clone(),
            bash_fault: fault.clone(),
            write_fault: fault,
            programs: HashSet::new(),
            python: Err("it cannot be run".to_owned()),
            charmap: "ANSI_X3.4-1968".to_owned(),
            setuid_programs: Ok(vec!["/bin/su".to_owned()]),
            ..ImageProbes::default()
        };
        let findings = probe_findings(&probes);
        let missing = ("image.program_missing", false);
        let mut expected = vec![("image.no_sh", true), ("image.no_bash", true)];
        expected.extend([missing; COMMON_PROGRAMS.len()]);
        expected.extend([
            ("image.no_utf8_locale", false),
            ("image.setuid_programs", false),
        ]);
        assert_eq!(codes(&findings), expected);
        assert_eq!(
            findings[3].message,
            "node is missing: JavaScript programs do not run"
        );
    }

    #[test]
    fn broken_python_and_an_unwritable_workspace_are_own_findings() {
        let probes = ImageProbes {
            python: Err("exit code 1: no module encodings".to_owned()),
            write_fault: Some("exit code 2".to_owned()),
            ..working_probes()
        };
        let expected = [("image.not_writable", true), ("image.python_broken", false)];
        assert_eq!(codes(&probe_findings(&probes)), expected);
    }

    #[test]
    fn list_of_names_is_bounded() {
        let numbers: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        let names: Vec<&str> = numbers.iter().map(String::as_str).collect();
        assert_eq!(
            list_names(&names),
            "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more"
        );
        assert_eq!(list_names(&names[..10]), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9");
    }
}
