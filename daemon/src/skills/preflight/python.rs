//! What Python files, and the files about them, say that they need. Pure; text in, names and lines out. What cannot be
//! understood is nothing: somebody else's file is not a reason to fail.

mod source;

pub(super) use source::imports;

/// Lines of a PEP 723 block.
const BLOCK_LINES_MAX: usize = 1000;
/// Longest name of a package.
const NAME_BYTES_MAX: usize = 128;

/// Module → the package that has it, where the names differ. Sorted.
const PACKAGES: [(&str, &str); 26] = [
    ("Crypto", "pycryptodome"),
    ("OpenSSL", "pyopenssl"),
    ("PIL", "pillow"),
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python"),
    ("dateutil", "python-dateutil"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("fitz", "pymupdf"),
    ("github", "pygithub"),
    ("googleapiclient", "google-api-python-client"),
    ("jose", "python-jose"),
    ("jwt", "pyjwt"),
    ("magic", "python-magic"),
    ("markdown_it", "markdown-it-py"),
    ("mpl_toolkits", "matplotlib"),
    ("pkg_resources", "setuptools"),
    ("pptx", "python-pptx"),
    ("psycopg2", "psycopg2-binary"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("slugify", "python-slugify"),
    ("yaml", "pyyaml"),
    ("zmq", "pyzmq"),
];

/// A name and the line that it is on.
pub(super) type Named = (String, usize);

/// The package that a module is in, if it has another name.
pub(super) fn package(module: &str) -> Option<&'static str> {
    let place = PACKAGES.binary_search_by(|(known, _)| (*known).cmp(module));
    let place = place.ok().and_then(|place| PACKAGES.get(place));
    place.map(|(_, package)| *package)
}

/// Dependencies of a script's own block of metadata (PEP 723), and the line where it begins.
pub(super) fn script_block(text: &str) -> Vec<Named> {
    let mut lines = text.lines().map(str::trim_end).enumerate();
    let Some((start, _)) = lines.find(|(_, line)| *line == "# /// script") else {
        return Vec::new();
    };
    let mut block = String::new();
    for (_, line) in lines.take(BLOCK_LINES_MAX) {
        if line == "# ///" {
            let Ok(table) = block.parse::<toml::Table>() else {
                return Vec::new();
            };
            let names = strings(table.get("dependencies")).filter_map(requirement);
            return names.map(|name| (name, start + 1)).collect();
        }
        let Some(line) = line.strip_prefix('#') else {
            break;
        };
        block.push_str(line.strip_prefix(' ').unwrap_or(line));
        block.push('\n');
    }
    // Never closed.
    Vec::new()
}

/// Lines of a requirements.txt that name a package.
pub(super) fn requirements(text: &str) -> Vec<Named> {
    let mut continued = false;
    let lines = text.lines().enumerate().filter(|(_, line)| {
        let continues = std::mem::replace(&mut continued, line.trim_end().ends_with('\\'));
        !continues
    });
    let names = lines.filter_map(|(index, line)| {
        let line = line.trim_start_matches('\u{feff}').trim();
        let line = line.trim_end_matches('\\');
        let line = line.split_once(" #").map_or(line, |(line, _)| line);
        // Options, comments, paths and URLs have no name at their beginning.
        let named = !line.starts_with(['-', '#', '.', '/']);
        let url = line.contains("://") && !line.contains('@');
        (named && !url).then(|| Some((requirement(line)?, index + 1)))?
    });
    names.collect()
}

/// `project.dependencies` of a pyproject.toml, or those that Poetry has.
pub(super) fn project(text: &str) -> Vec<String> {
    let Ok(table) = text.parse::<toml::Table>() else {
        return Vec::new();
    };
    let of = |keys: &[&str]| {
        let first = table.get(*keys.first()?)?;
        let mut rest = keys.iter().skip(1);
        rest.try_fold(first, |value, key| value.get(key))
    };
    let declared = strings(of(&["project", "dependencies"])).filter_map(requirement);
    let poetry = of(&["tool", "poetry", "dependencies"]).and_then(toml::Value::as_table);
    let poetry = poetry.into_iter().flatten().filter_map(|(name, value)| {
        let optional = value.get("optional").and_then(toml::Value::as_bool);
        (name != "python" && optional != Some(true)).then(|| requirement(name))?
    });
    declared.chain(poetry).collect()
}

fn strings(value: Option<&toml::Value>) -> impl Iterator<Item = &str> {
    let array = value.and_then(toml::Value::as_array);
    array.into_iter().flatten().filter_map(toml::Value::as_str)
}

/// The normalised name (PEP 503) at the beginning of a requirement (PEP 508); `None` if it has none, or is for another
/// system.
fn requirement(text: &str) -> Option<String> {
    let (text, marker) = text.split_once(';').unwrap_or((text, ""));
    let foreign = ["win32", "Windows", "darwin", "Darwin"];
    let only = marker.contains("==") && foreign.iter().any(|system| marker.contains(system));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let text = text.trim();
    let end = text.find(|c| !plain(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at_checked(end)?;
    let follows = rest.trim_start().chars().next();
    let good = follows.is_none_or(|c| "[(<>=!~@,#".contains(c));
    if only || !good || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let parts = name.split(['-', '_', '.']).filter(|part| !part.is_empty());
    let name = parts.collect::<Vec<_>>().join("-").to_lowercase();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests;
