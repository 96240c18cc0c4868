//! Reads requirements from Python scripts, requirements.txt and pyproject.toml. Pure. Text that cannot be understood
//! yields nothing, because a skill's file must not make preflight fail.

use crate::parse::requirement_line::{normalised_name, without_variant};

/// Maximum number of lines of a PEP 723 block.
const BLOCK_LINES_MAX: usize = 1000;
/// Maximum length of a package's name, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Modules and the packages that have them, where the names differ.
#[rustfmt::skip]
const PACKAGES: &[(&str, &str)] = &[
    ("Bio", "biopython"), ("Crypto", "pycryptodome"), ("Cryptodome", "pycryptodomex"), ("OpenSSL", "pyopenssl"),
    ("PIL", "pillow"), ("attr", "attrs"), ("bs4", "beautifulsoup4"), ("cairo", "pycairo"), ("cv2", "opencv-python"),
    ("dateutil", "python-dateutil"), ("discord", "discord-py"), ("docx", "python-docx"), ("dotenv", "python-dotenv"),
    ("faiss", "faiss-cpu"), ("fitz", "pymupdf"), ("git", "gitpython"), ("hcl2", "python-hcl2"), ("github", "pygithub"),
    ("gi", "pygobject"), ("google.oauth2", "google-auth"), ("google.protobuf", "protobuf"),
    ("googleapiclient", "google-api-python-client"), ("jose", "python-jose"), ("jwt", "pyjwt"), ("ldap", "python-ldap"),
    ("magic", "python-magic"), ("markdown_it", "markdown-it-py"), ("mpl_toolkits", "matplotlib"),
    ("MySQLdb", "mysqlclient"), ("nacl", "pynacl"), ("opentelemetry.metrics", "opentelemetry-api"),
    ("opentelemetry.trace", "opentelemetry-api"), ("pkg_resources", "setuptools"), ("pptx", "python-pptx"),
    ("psycopg2", "psycopg2-binary"), ("serial", "pyserial"), ("skimage", "scikit-image"), ("sklearn", "scikit-learn"),
    ("slugify", "python-slugify"), ("telegram", "python-telegram-bot"), ("umap", "umap-learn"), ("usb", "pyusb"),
    ("whisper", "openai-whisper"), ("yaml", "pyyaml"), ("zmq", "pyzmq"), ("decouple", "python-decouple"),
    ("dns", "dnspython"), ("environ", "django-environ"), ("ffmpeg", "ffmpeg-python"), ("firecrawl", "firecrawl-py"),
    ("multipart", "python-multipart"), ("odf", "odfpy"), ("osgeo", "gdal"), ("pdfminer", "pdfminer-six"),
    ("pylab", "matplotlib"), ("readability", "readability-lxml"), ("rest_framework", "djangorestframework"),
    ("shapefile", "pyshp"), ("snowflake", "snowflake-connector-python"), ("socketio", "python-socketio"),
    ("speech_recognition", "speechrecognition"), ("tabula", "tabula-py"), ("tavily", "tavily-python"),
    ("telebot", "pytelegrambotapi"), ("win32com", "pywin32"),
];

/// A name and the line that it is on, 0 if the line is not known.
pub(super) type LocatedName = (String, usize);

/// Returns the package that a module is most likely in.
pub(super) fn likely_package_of(module: &str) -> String {
    match PACKAGES.iter().find(|(known, _)| *known == module) {
        Some((_, package)) => (*package).to_owned(),
        None => module.replace(['_', '.'], "-").to_lowercase(),
    }
}

/// Returns `true` if a module is most likely of a package, or of a variant of it.
pub(super) fn is_module_of(module: &str, package: &str) -> bool {
    without_variant(&likely_package_of(module)) == without_variant(package)
}

/// Inline metadata of a Python script (PEP 723).
#[derive(Debug)]
pub(crate) struct ScriptMetadata {
    /// Line where the block begins.
    pub(crate) line: usize,
    /// Requirements of the script, as written.
    pub(crate) dependencies: Vec<String>,
}

/// Returns the packages of a script's inline metadata, with the line where its block begins.
pub(super) fn read_script_block(text: &str) -> Vec<LocatedName> {
    let Some(metadata) = read_script_metadata(text) else {
        return Vec::new();
    };
    let dependencies = metadata.dependencies.iter();
    let names = dependencies.filter_map(|dependency| parse_requirement(dependency));
    names.map(|name| (name, metadata.line)).collect()
}

/// Reads the inline metadata of a script; returns `None` if it has none, or a block that is never closed.
pub(crate) fn read_script_metadata(text: &str) -> Option<ScriptMetadata> {
    let mut lines = text.lines().map(str::trim_end).enumerate();
    let (start, _) = lines.find(|(_, line)| *line == "# /// script")?;
    let mut block = String::new();
    for (_, line) in lines.take(BLOCK_LINES_MAX) {
        if line == "# ///" {
            let table = block.parse::<toml::Table>().unwrap_or_default();
            let dependencies = text_items(table.get("dependencies")).map(str::to_owned);
            return Some(ScriptMetadata {
                line: start + 1,
                dependencies: dependencies.collect(),
            });
        }
        let comment = line.strip_prefix('#')?;
        block += comment.strip_prefix(' ').unwrap_or(comment);
        block += "\n";
    }
    None
}

/// Returns the packages that a requirements.txt names, with their lines.
pub(super) fn read_requirements(text: &str) -> Vec<LocatedName> {
    let mut continued = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let continues = std::mem::replace(&mut continued, line.trim_end().ends_with('\\'));
        !continues
    });
    let names = lines.filter_map(|(index, line)| {
        let trimmed = line.trim().trim_end_matches('\\');
        let requirement = trimmed.split(" #").next().unwrap_or_default();
        // Options, comments, paths and URLs have no name at their beginning.
        let named = !requirement.starts_with(['-', '#', '.', '/']);
        let url = requirement.contains("://") && !requirement.contains('@');
        (named && !url).then(|| Some((parse_requirement(requirement)?, index + 1)))?
    });
    names.collect()
}

/// Returns `project.dependencies` of a pyproject.toml, and those of Poetry, without lines.
pub(super) fn read_project(text: &str) -> Vec<LocatedName> {
    let Ok(table) = text.parse().map(toml::Value::Table) else {
        return Vec::new();
    };
    let find = |path: &str| path.split('.').try_fold(&table, |node, key| node.get(key));
    let declared = text_items(find("project.dependencies")).filter_map(parse_requirement);
    let poetry = find("tool.poetry.dependencies").and_then(toml::Value::as_table);
    let of_poetry = poetry.into_iter().flatten().filter_map(|(name, value)| {
        let optional = value.get("optional").and_then(toml::Value::as_bool);
        (name != "python" && optional != Some(true)).then(|| parse_requirement(name))?
    });
    declared.chain(of_poetry).map(|name| (name, 0)).collect()
}

/// Returns the texts of a TOML array.
fn text_items(value: Option<&toml::Value>) -> impl Iterator<Item = &str> {
    let array = value.and_then(toml::Value::as_array);
    array.into_iter().flatten().filter_map(toml::Value::as_str)
}

/// Returns the normalised name (PEP 503) at the beginning of a requirement (PEP 508); `None` if it has none, or is for
/// another system.
pub(super) fn parse_requirement(text: &str) -> Option<String> {
    let (requirement, marker) = text.split_once(';').unwrap_or((text, ""));
    let foreign = ["win32", "Windows", "darwin", "Darwin"];
    let only = marker.contains("==") && foreign.iter().any(|system| marker.contains(system));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let trimmed = requirement.trim();
    let end = trimmed.find(|c| !plain(c)).unwrap_or(trimmed.len());
    let (name, rest) = trimmed.split_at_checked(end)?;
    let follows = rest.trim_start().chars().next();
    let good = follows.is_none_or(|c| "[(<>=!~@,#".contains(c));
    if only || !good || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let name = normalised_name(name);
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests;
