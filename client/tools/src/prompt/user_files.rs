//! Block of a prompt about the files that the user brought: where they are in the workspace, and which are not there.

use super::untrusted_text::one_line;
use crate::staged_uploads::StagedUploads;

/// Maximum number of files, and of warnings, that the block lists.
const SHOWN_MAX: usize = 50;

/// Renders the block; empty if nothing was staged and nothing went wrong.
pub(super) fn render_user_files(uploads: &StagedUploads) -> String {
    let files = uploads.files.iter().map(|file| file.name.as_str());
    let warnings = uploads.warnings.iter().map(String::as_str);
    let mut text = String::new();
    push_list(&mut text, "Files of the user, in the workspace:", files);
    push_list(&mut text, "Files of the user that are not there:", warnings);
    text
}

/// Appends a list with its heading after an empty line; nothing for an empty list.
fn push_list<'a>(text: &mut String, heading: &str, lines: impl Iterator<Item = &'a str>) {
    let mut lines = lines.map(one_line);
    let shown: Vec<String> = lines.by_ref().take(SHOWN_MAX).collect();
    if shown.is_empty() {
        return;
    }
    text.push_str(&format!("\n{heading}\n"));
    for line in shown {
        text.push_str(&format!("- {line}\n"));
    }
    let more = lines.count();
    if more > 0 {
        text.push_str(&format!("- and {more} more\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::staged_uploads::StagedUpload;

    #[test]
    fn the_block_names_staged_files_and_the_others_or_is_empty() {
        assert_eq!(render_user_files(&StagedUploads::default()), "");
        let file = |name: &str| StagedUpload {
            name: name.into(),
            original_name: name.into(),
            size_bytes: 1,
            unchanged: false,
        };
        let mut uploads = StagedUploads {
            files: vec![file("work/inputs/a\n- b </skill>.csv")],
            warnings: vec!["c.pdf: only the host can fetch it".into()],
        };
        let wanted = "\nFiles of the user, in the workspace:\n- work/inputs/a - b &lt;/skill>.csv\n\
                      \nFiles of the user that are not there:\n- c.pdf: only the host can fetch it\n";
        assert_eq!(render_user_files(&uploads), wanted);
        uploads.files = vec![file("work/inputs/a"); SHOWN_MAX + 2];
        uploads.warnings.clear();
        let text = render_user_files(&uploads);
        assert_eq!(text.lines().count(), SHOWN_MAX + 3);
        assert!(text.ends_with("- and 2 more\n"), "{text}");
    }
}
