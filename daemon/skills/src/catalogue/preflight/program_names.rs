//! Names of programs: which are no programs, which mean the same one, and which package brings which program. Pure.

use super::has_word;

/// Maximum length of a program's name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Commands that a shell itself has.
const BUILTINS: &str = "alias bg bind break builtin caller cd compgen complete compopt continue declare dirs disown echo \
    enable eval exec exit export false fc fg getopts hash help history jobs let local logout mapfile popd printf pushd \
    pwd read readarray readonly return set setopt shift shopt source suspend test times trap true type typeset ulimit \
    umask unalias unset unsetopt wait";
/// Sets of programs of which each does for the others.
const ALIASES: [&str; 13] = [
    "soffice libreoffice localc loffice lowriter",
    "convert magick",
    "python3 python",
    "pip3 pip",
    "node nodejs",
    "awk gawk mawk nawk",
    "rg ripgrep",
    "fd fdfind",
    "bat batcat",
    "7z 7za 7zr 7zz",
    "chromium chromium-browser google-chrome google-chrome-stable",
    "uv uvx",
    "pwsh powershell",
];
/// Packages of apt, dnf, apk and brew, and the programs that they bring, where the names differ.
const PACKAGES: &str = "awscli=aws bat=bat,batcat build-essential=gcc calibre=ebook-convert chromium-browser=chromium \
    default-jdk=java default-jre=java dnsutils=dig docker-ce=docker docker.io=docker fd-find=fd fd=fd \
    ghostscript=gs gnupg=gpg golang=go golang-go=go graphviz=dot,neato imagemagick=convert,identify,mogrify,montage \
    ImageMagick=convert,identify,mogrify,montage kubernetes-cli=kubectl libimage-exiftool-perl=exiftool \
    libreoffice-calc=soffice libreoffice-core=soffice libreoffice-impress=soffice libreoffice-writer=soffice \
    libxml2-utils=xmllint neovim=nvim netcat-openbsd=nc nodejs=node node=node openjdk=java openssh-client=ssh,scp \
    p7zip-full=7z p7zip=7z perl-image-exiftool=exiftool poppler-utils=pdftotext,pdftoppm,pdfimages,pdfinfo,pdfseparate \
    poppler=pdftotext,pdftoppm,pdfimages,pdfinfo,pdfseparate postgresql-client=psql postgresql=psql \
    python3-pip=pip3 python-pip=pip3 python=python3 redis-tools=redis-cli redis=redis-cli ripgrep=rg \
    tesseract-ocr=tesseract texlive-latex-base=pdflatex,latexmk texlive-latex-extra=pdflatex,latexmk,xelatex \
    texlive-xetex=xelatex texlive-full=pdflatex,latexmk,xelatex texlive=pdflatex,latexmk,xelatex universal-ctags=ctags \
    yq=yq";
/// Programs whose names are no words of a language.
const KNOWN: &str = "7z act actionlint adb age ansible ansible-playbook aria2c ast-grep aws az bandit base64 bash bat black \
    brew bun bundle bunx cargo cdk chromium clang clang-format claude cmake codex composer conda convert copilot crane ctags \
    curl cwebp deno detect-secrets dig docker docker-compose dot dotnet doctl duckdb easyocr eslint exiftool fd ffmpeg \
    ffprobe firebase flake8 flutter flyctl fzf gcc gcloud gdb gemini gh ghostscript git gitleaks glab go golangci-lint gpg \
    gradle grep gs gsutil gunzip gzip hadolint helm heroku hugo hyperfine identify inkscape isort jekyll jest jq jupyter k6 \
    k9s kubectl kustomize latexmk libreoffice lighthouse lualatex magick maturin mdbook mermaid mkdocs mmdc mogrify montage \
    mpv mvn mypy mysql nc netlify nginx ngrok nmap node npm npx nuclei nvim ollama openssl optipng oxipng packer pandoc \
    pdfimages pdfinfo pdflatex pdfseparate pdftk pdftohtml pdftoppm pdftotext pdfunite perl php pip pip3 pipx pnpm pngquant \
    podman poetry prettier psql pulumi pwsh pyright pytest python python3 qpdf quarto rclone redis-cli rg rsvg-convert rsync \
    ruby ruff rustc scp sed semgrep sg shellcheck shfmt soffice sops sox sqlite3 ssh staticcheck stripe stylelint supabase \
    swift tectonic terraform terragrunt tesseract tflint tmux tox trivy trufflehog ts-node tsc tshark tsx typst unzip uv uvx \
    vercel vitest weasyprint wget whisper wkhtmltopdf wrangler xelatex xmllint xsltproc yarn yq yt-dlp";
/// Programs whose names are words of English, too.
const AMBIGUOUS: &str = "act age awk cat chmod chown convert cp cut date diff dot echo file find fold go head identify join \
    less ln ls make mkdir mv open packer paste play rm screen sort split strings swift tail tar tee test time top touch tree \
    watch wc which who xargs zip";
/// Libraries and data in package managers, which are no programs.
const LIBRARY_PREFIXES: [&str; 9] = [
    "lib",
    "fonts-",
    "font-",
    "python3-",
    "python-",
    "ruby-",
    "ttf-",
    "texlive-lang",
    "tesseract-ocr-",
];

/// Returns `true` if a word of a command can be the name of a program that an image has.
pub(super) fn is_program_name(name: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "._+-".contains(char);
    let is_start = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
    let is_named_like_one =
        name.starts_with(is_start) && name.contains(|c: char| c.is_ascii_alphabetic());
    let is_placeholder = ["your", "my-", "my_", "foo", "example", "some-"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let is_file = name.rsplit_once('.').is_some_and(|(_, ending)| {
        has_word(
            "bash cjs js json md mjs pl ps1 py rb sh ts txt yaml yml zsh",
            ending,
        )
    });
    let known = has_word("R Rscript Xvfb HandBrakeCLI", name);
    let good = is_named_like_one
        && !is_placeholder
        && !is_file
        && !has_word("cmd command program tool", name);
    name.len() <= NAME_BYTES_MAX
        && (known || (name.len() > 1 && good && name.chars().all(is_plain)))
}

/// Returns `true` if a shell has a command itself.
pub(super) fn is_builtin(name: &str) -> bool {
    has_word(BUILTINS, name)
}

/// Returns `true` for a program of which the name alone says that a line is a command.
pub(super) fn is_known_program(name: &str) -> bool {
    has_word(KNOWN, name) || has_word(AMBIGUOUS, name)
}

/// Returns `true` if the name of a known program is a word of English, too.
pub(super) fn is_ambiguous(name: &str) -> bool {
    has_word(AMBIGUOUS, name)
}

/// Returns all names of a program, or its own name alone.
pub(super) fn aliases_of(name: &str) -> impl Iterator<Item = &str> {
    let set = ALIASES.iter().find(|set| has_word(set, name));
    let set = set.copied().unwrap_or_default();
    set.split(' ').chain([name]).filter(|name| !name.is_empty())
}

/// Returns the programs that a package of the system brings, of which any one shows that it is installed. Empty for
/// libraries.
pub(super) fn programs_of_package(package: &str) -> Vec<&str> {
    let mut pairs = PACKAGES.split_whitespace();
    let programs = pairs.find_map(|pair| pair.strip_prefix(package)?.strip_prefix('='));
    if let Some(programs) = programs {
        return programs.split(',').collect();
    }
    let is_library = LIBRARY_PREFIXES
        .iter()
        .any(|prefix| package.starts_with(prefix) && package != "libreoffice");
    let is_library = is_library
        || ["-dev", "-data", "-doc"]
            .iter()
            .any(|end| package.ends_with(end));
    let is_base = has_word(
        "ca-certificates coreutils findutils locales procps tzdata software-properties-common",
        package,
    );
    match is_library || is_base || !is_program_name(package) {
        true => Vec::new(),
        false => vec![package],
    }
}
