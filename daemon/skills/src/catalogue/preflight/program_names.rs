//! Names of programs that preflight looks for. Pure.
//!
//! Only these names count at the start of a command, because a word of a shell can be anything: a function, a file, a
//! word of a text. A program that is missing here is named by the run that fails for it.

/// Programs whose names rarely mean anything else in a text about what a skill needs.
#[rustfmt::skip]
const PROGRAMS: &[&str] = &[
    "7z", "ansible", "ansible-playbook", "aria2c", "ast-grep", "aws", "az", "bibtex", "biber", "bun", "bunx", "cargo",
    "chromium", "clang", "cmake", "curl", "cwebp", "deno", "docker", "docker-compose", "dotnet", "duckdb",
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
    "bundle", "convert", "dot", "go", "identify", "make", "montage", "whisper",
];
/// Sets of programs of which each does for the others.
#[rustfmt::skip]
const ALIASES: &[&[&str]] = &[
    &["soffice", "libreoffice", "localc", "loffice", "lowriter"], &["convert", "magick"], &["python3", "python"],
    &["pip3", "pip"], &["uv", "uvx"], &["node", "nodejs"], &["awk", "gawk", "mawk", "nawk"], &["rg", "ripgrep"],
    &["fd", "fdfind"], &["bat", "batcat"], &["7z", "7za", "7zr", "7zz"], &["pwsh", "powershell"],
    &["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"],
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
    let known = ALIASES.iter().find(|set| set.contains(&name));
    let set: &[&str] = known.copied().unwrap_or_default();
    set.iter().copied().chain([name])
}
