//! Name of a skill, read from its folder or archive without a full parser.

use std::path::Path;

use super::folder_walk::ArchivePlan;

/// File name of a skill card.
pub(super) const CARD: &str = "skill-card.json";
/// Maximum number of bytes of a document that are searched for a name, which stands at the beginning.
const START_BYTES: u64 = 1 << 20;
/// Maximum length of a skill's id in characters.
const ID_CHARS_MAX: usize = 64;
/// Endings of the file names of archives.
const ENDINGS: [&str; 4] = [".tar.gz", ".tgz", ".tar", ".zip"];

/// Returns the card's `id`, else the front matter's `name`, else the folder's own name.
pub(super) fn name_of_folder(packed: &ArchivePlan) -> String {
    let read = |name: &str| {
        let entry = packed.entries.iter().find(|entry| entry.path == name)?;
        let bytes = packed.start_of(entry, START_BYTES).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let of_card = || {
        let card: serde_json::Value = serde_json::from_str(&read(CARD)?).ok()?;
        card.get("id")?.as_str().map(ToOwned::to_owned)
    };
    let document = packed.entries.iter().map(|entry| entry.path.as_str());
    let document = document
        .into_iter()
        .find(|path| path.eq_ignore_ascii_case("SKILL.md"));
    let said = of_card()
        .filter(|id| is_id(id))
        .or_else(|| front_matter_name(&read(document?)?).filter(|name| is_id(name)));
    said.unwrap_or_else(|| {
        // `.` and links have names elsewhere.
        let real = packed.root.shown().canonicalize();
        let name = real
            .ok()
            .and_then(|real| Some(real.file_name()?.to_string_lossy().into_owned()));
        name.unwrap_or_default()
    })
}

/// Returns the archive's file name without the ending that marks an archive.
pub(super) fn name_of_archive(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let stems = ENDINGS
        .iter()
        .filter_map(|ending| name.strip_suffix(ending));
    stems
        .min_by_key(|stem| stem.len())
        .unwrap_or(&name)
        .to_owned()
}

/// Returns the value of a plain line `name: …`. Other spellings of YAML are left to the server.
fn front_matter_name(text: &str) -> Option<String> {
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    lines.next().filter(|line| line.trim_end() == "---")?;
    let mut front = lines.take_while(|line| line.trim_end() != "---");
    let value = front.find_map(|line| line.strip_prefix("name:"))?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    let unquoted = ['"', '\''].iter().find_map(|quote| {
        let inner = value.strip_prefix(*quote)?;
        inner.strip_suffix(*quote)
    });
    Some(unquoted.unwrap_or(value).to_owned())
}

fn is_id(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= ID_CHARS_MAX
        && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_where_they_are_plain() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(front_matter_name(text).as_deref(), expected, "{text:?}");
        };
        check("---\nname: csv\n---\n", Some("csv"));
        check(
            "\u{feff}---\r\ndescription: d\r\nname: \"csv\"  # x\r\n---\r\n",
            Some("csv"),
        );
        check("---\nname: 'csv'\n---\n", Some("csv"));
        check("---\nname:\n---\n", Some(""));
        check("---\nx: y\n---\nname: body\n", None);
        check("# no front matter\nname: csv\n", None);
        check("", None);
    }

    #[test]
    fn an_archive_is_called_as_its_file() {
        for path in ["a/csv.tar.gz", "csv.tgz", "csv.zip", "csv.tar", "csv"] {
            assert_eq!(name_of_archive(Path::new(path)), "csv");
        }
    }
}
