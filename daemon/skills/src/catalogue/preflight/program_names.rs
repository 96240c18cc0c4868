//! Names of programs that preflight looks for. Pure.
//!
//! Only these names count at the start of a command, because a word of a shell can be anything: a function, a file, a
//! word of a text. A program that is missing here is named by the run that fails for it.

/// Programs whose names are no words of English. A text that names one means the program.
#[rustfmt::skip]
const PROGRAMS: &[&str] = &[
    "7z", "ansible", "ansible-playbook", "aria2c", "ast-grep", "aws", "az", "bibtex", "biber", "bun", "bundle", "bunx",
    "cargo", "chromium", "clang", "cmake", "curl", "cwebp", "deno", "docker", "docker-compose", "dotnet", "duckdb",
    "ebook-convert", "epubcheck", "eslint", "exiftool", "fd", "ffmpeg", "ffprobe", "gcc", "gcloud", "gh", "ghostscript",
    "git", "gitleaks", "glab", "gnuplot", "gpg", "gradle", "gs", "helm", "hugo", "hyperfine", "inkscape", "java",
    "javac", "jpegoptim", "jq", "jupyter", "kubectl", "latexmk", "libreoffice", "lualatex", "magick", "mediainfo",
    "mkdocs", "mlr", "mmdc", "mogrify", "mvn", "mysql", "netlify", "node", "npm", "npx", "ogr2ogr", "ollama", "openssl",
    "optipng", "pandoc", "pdfimages", "pdfinfo", "pdflatex", "pdftk", "pdftoppm", "pdftotext", "pdfunite", "perl",
    "php", "pip", "pip3", "pipx", "pngquant", "pnpm", "podman", "poetry", "prettier", "psql", "pulumi", "pwsh",
    "pytest", "python", "python3", "qpdf", "quarto", "rclone", "redis-cli", "rg", "Rscript", "rsvg-convert", "rsync",
    "ruby", "ruff", "rustc", "semgrep", "shellcheck", "soffice", "sox", "sqlite3", "ssh", "supabase", "tectonic",
    "terraform", "tesseract", "tflint", "tmux", "trivy", "tsc", "tsx", "typst", "uv", "uvx", "vercel", "weasyprint",
    "wget", "wkhtmltopdf", "wrangler", "xelatex", "xmllint", "yarn", "yq", "yt-dlp",
];
/// Programs whose names are words of English, too: in a text they may mean something else.
const AMBIGUOUS: &[&str] = &[
    "convert", "dot", "go", "identify", "make", "montage", "whisper",
];
/// Sets of programs of which each does for the others.
const ALIASES: [&[&str]; 10] = [
    &["soffice", "libreoffice", "localc", "loffice", "lowriter"],
    &["convert", "magick"],
    &["python3", "python"],
    &["pip3", "pip"],
    &["node", "nodejs"],
    &["awk", "gawk", "mawk", "nawk"],
    &["rg", "ripgrep"],
    &["fd", "fdfind"],
    &["7z", "7za", "7zr", "7zz"],
    &["chromium", "chromium-browser", "google-chrome"],
];

/// Returns `true` for a program that counts at the start of a command.
pub(super) fn is_known_program(name: &str) -> bool {
    is_named_in_text(name) || AMBIGUOUS.contains(&name)
}

/// Returns `true` for a program that a text means where it has its name.
pub(super) fn is_named_in_text(name: &str) -> bool {
    PROGRAMS.contains(&name)
}

/// Returns all names of a program, or its own name alone.
pub(super) fn aliases_of(name: &str) -> impl Iterator<Item = &str> {
    let set: &[&str] = ALIASES
        .iter()
        .find(|set| set.contains(&name))
        .copied()
        .unwrap_or_default();
    set.iter().copied().chain([name])
}
