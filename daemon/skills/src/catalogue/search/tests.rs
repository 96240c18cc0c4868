//! Ranking, as a table over a catalogue of a dozen skills.

use super::*;
use crate::parse::front_matter::FrontMatter;

/// Name, description, tags, triggers.
type Row = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const CATALOGUE: [Row; 12] = [
    (
        "pdf",
        "Read and fill forms. Use when the user has a document.",
        &["office"],
        &[],
    ),
    ("pdf-tools", "Merge and split documents.", &[], &[]),
    ("my-pdf", "Personal documents.", &[], &[]),
    ("pdfium", "A rendering library.", &[], &[]),
    ("reports", "Make a pdf of quarterly figures.", &[], &[]),
    ("invoices", "Write invoices.", &["pdf"], &[]),
    (
        "csv-report",
        "Summarise tables of data for the user.",
        &["data", "csv"],
        &[],
    ),
    (
        "sql_query",
        "Ask databases; data in, data out.",
        &["data"],
        &["explain plan"],
    ),
    ("git/helper", "Data about commits.", &["data"], &[]),
    (
        "skill-creator",
        "Use when a new skill is wanted.",
        &["meta"],
        &[],
    ),
    (
        "übersetzer",
        "Übersetzt Texte ins Größere.",
        &["sprache"],
        &[],
    ),
    ("翻訳", "日本語の文書を翻訳する", &[], &[]),
];

fn skill(name: &str, description: &str, tags: &[&str], triggers: &[&str]) -> Arc<Skill> {
    let strings = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
    Arc::new(Skill {
        name: name.to_owned(),
        front_matter: Arc::new(FrontMatter {
            description: description.to_owned(),
            tags: strings(tags),
            triggers: strings(triggers),
            ..FrontMatter::default()
        }),
        ..Skill::default()
    })
}

fn index(rows: &[Row]) -> SearchIndex {
    let skills = rows
        .iter()
        .map(|(name, description, tags, triggers)| skill(name, description, tags, triggers));
    index_sorted(skills)
}

fn index_sorted(skills: impl Iterator<Item = Arc<Skill>>) -> SearchIndex {
    let mut sorted: Vec<_> = skills.collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    SearchIndex::new(&sorted)
}

/// Returns the name of a found skill of [`CATALOGUE`].
fn name(hit: &SearchMatch) -> &'static str {
    let mut rows = CATALOGUE.iter();
    rows.find(|row| row.0 == hit.skill.name).expect("listed").0
}

fn names(hits: &[SearchMatch]) -> Vec<&'static str> {
    hits.iter().map(name).collect()
}

fn fields(hits: &[SearchMatch], name: &str) -> Vec<&'static str> {
    let hit = hits.iter().find(|hit| hit.skill.name == name);
    hit.expect(name).fields.clone()
}

#[test]
fn the_stop_words_are_sorted() {
    assert!(STOP_WORDS.is_sorted());
}

#[test]
fn names_come_before_descriptions_and_these_before_tags() {
    let index = index(&CATALOGUE);
    let found = |query: &str| names(&index.search(query, 25).expect("words"));
    let cases = "
        // Exact name, name that begins so (a whole word before a part), word in a name, in a description, in a tag.
        pdf => pdf pdf-tools pdfium my-pdf reports invoices
        PDF => pdf pdf-tools pdfium my-pdf reports invoices
        // The whole query is a name, however it is written.
        csv report => csv-report reports
        csv-report => csv-report reports
        Csv_Report => csv-report reports
        git/helper => git/helper
        sql query => sql_query
        // Its stop word takes part in a name.
        skill creator => skill-creator
        // The inside of a word is worth least.
        ices => invoices
        // Triggers count as tags.
        explain => sql_query
        // What is rare decides over what many have.
        data commits => git/helper csv-report sql_query
        // Every script.
        größere => übersetzer
        ÜBERSETZER => übersetzer
        翻訳 => 翻訳
        文書 => 翻訳
        nothing like it: zzz =>
    ";
    let lines = cases.trim().lines().map(str::trim);
    for case in lines.filter(|line| !line.starts_with("//")) {
        let (query, expected) = case.split_once(" =>").expect("a case");
        let expected: Vec<&str> = expected.split_whitespace().collect();
        assert_eq!(found(query), expected, "{query:?}");
    }
    let hits = index.search("data", 25).expect("words");
    assert_eq!(fields(&hits, "csv-report"), ["description", "tags"]);
    assert_eq!(
        fields(&index.search("pdf", 25).expect("words"), "my-pdf"),
        ["name"]
    );
}

#[test]
fn stop_words_do_not_score() {
    let index = index(&CATALOGUE);
    let search = |query: &str| index.search(query, 25);
    for query in ["", "  ", "\t\n", "use", "use the skill when", "-_/ !", "A"] {
        let refused = matches!(search(query), Err(Error::Invalid { .. }));
        assert!(refused, "{query:?}");
    }
    // `use`, `when` and `user` are in many descriptions.
    let with = search("use it when a user has invoices").expect("words");
    assert_eq!(names(&with), names(&search("invoices").expect("words")));
}

#[test]
fn words_of_every_skill_score_nearly_nothing() {
    let description = |n: usize| if n == 7 { "common rare" } else { "common" };
    let skills = (0..1000).map(|n| skill(&format!("n{n}"), description(n), &[], &[]));
    let index = index_sorted(skills);
    let common = index.search("common", 1).expect("words");
    let rare = index.search("rare", 1).expect("words");
    assert!(
        rare[0].score > 100.0 * common[0].score,
        "{rare:?} {common:?}"
    );
    assert_eq!(
        index.search("common rare", 3).expect("words")[0].skill.name,
        "n7"
    );
}

#[test]
fn equal_scores_are_in_order_of_names_and_limited() {
    let index = index(&CATALOGUE);
    let hits = index.search("documents", 25).expect("words");
    assert_eq!(names(&hits), ["my-pdf", "pdf-tools"]);
    assert_eq!(hits[0].score.to_bits(), hits[1].score.to_bits());
    assert_eq!(
        names(&index.search("documents", 1).expect("words")),
        ["my-pdf"]
    );
}

#[test]
fn a_phrase_without_blanks_finds_the_skill_in_first_place() {
    let rows: [Row; 5] = [
        (
            "sheet-merge",
            "把多个表格文件合并成一个，并去掉重复的行。",
            &[],
            &[],
        ),
        ("invoice-read", "从发票图片里读取金额和日期。", &[], &[]),
        (
            "meeting-notes",
            "会議の録音から議事録を作ります。",
            &[],
            &[],
        ),
        ("thai-doc", "แปลงเอกสารเป็นไฟล์", &[], &[]),
        ("korean-doc", "보고서를 요약합니다", &[], &[]),
    ];
    let index = index(&rows);
    for (query, expected) in [
        ("表格", "sheet-merge"),
        ("合并表格", "sheet-merge"),
        ("请帮我合并两个表格", "sheet-merge"),
        ("请帮我，合并两个表格！", "sheet-merge"),
        ("读取发票金额", "invoice-read"),
        ("議事録作成", "meeting-notes"),
        ("แปลงไฟล์", "thai-doc"),
        ("보고서 요약", "korean-doc"),
    ] {
        let found = index.search(query, 25).expect("words");
        assert_eq!(found[0].skill.name, expected, "{query}");
        let found = index.search_compat(query, 25).expect("words");
        assert_eq!(found[0].skill.name, expected, "{query}, compat");
    }
}

#[test]
fn a_name_as_it_is_written_is_searched() {
    let skills = [("report-1a2b3c4d", "数据报表"), ("text-stats", "")].map(|(name, title)| {
        let front_matter = FrontMatter {
            display_name: title.to_owned(),
            description: "d".to_owned(),
            ..FrontMatter::default()
        };
        Arc::new(Skill {
            name: name.to_owned(),
            front_matter: Arc::new(front_matter),
            ..Skill::default()
        })
    });
    let index = index_sorted(skills.into_iter());
    for query in ["数据报表", "报表", "数据"] {
        for found in [index.search(query, 25), index.search_compat(query, 25)] {
            let found = found.expect("words");
            assert_eq!(found.len(), 1, "{query}");
            assert_eq!(found[0].fields, ["name"], "{query}");
        }
    }
}

#[test]
fn any_query_is_answered() {
    let index = index(&CATALOGUE);
    let long = "x ".repeat(QUERY_BYTES_MAX / 2);
    for query in [
        &long,
        "\0",
        "\u{202e}fdp",
        "[(*",
        "a\u{301}",
        "🦀🦀🦀",
        "\u{feff}pdf",
        "%_'\"",
    ] {
        let _ = index.search(query, 25);
        let _ = index.search_compat(query, 25);
    }
    assert!(
        SearchIndex::default()
            .search("pdf", 25)
            .expect("words")
            .is_empty()
    );
}

#[test]
fn compat_scores_as_agent_zero_does() {
    let index = index(&CATALOGUE);
    let score = |query: &str| -> Vec<(&str, f64)> {
        let hits = index.search_compat(query, 25).expect("words");
        let rows = hits.iter().map(|hit| (name(hit), hit.score));
        rows.collect()
    };
    // Substrings: 3 in the name, 2 in the description, 1 for each tag; equal ones by name.
    assert_eq!(
        score("PDF"),
        [
            ("my-pdf", 3.0),
            ("pdf", 3.0),
            ("pdf-tools", 3.0),
            ("pdfium", 3.0),
            ("reports", 2.0),
            ("invoices", 1.0)
        ]
    );
    // Summed over terms, a term that occurs twice counts twice.
    assert_eq!(score("csv csv"), [("csv-report", 8.0)]);
    assert_eq!(score("report dat")[0], ("csv-report", 3.0 + 2.0 + 1.0));
    // Beside a word that says something a stop word is a term like any other: `use` is in `use`, `user`. Triggers are
    // not searched.
    assert_eq!(
        score("xlsx use"),
        [("csv-report", 2.0), ("pdf", 2.0), ("skill-creator", 2.0)]
    );
    // Alone such words find nothing, not everything.
    for query in ["use", "a", "the of", "The, and a!", "e", "- ."] {
        assert_eq!(score(query), [], "{query}");
    }
    assert_eq!(score("explain"), []);
    assert!(index.search_compat(" \t", 25).is_err());
}

#[test]
fn compat_adds_one_point_for_each_tag_that_has_the_term() {
    let index = index(&[
        ("one", "First.", &["pdf-forms", "office"], &[]),
        ("two", "Second.", &["pdf-forms", "pdf-text", "PDFium"], &[]),
    ]);
    let hits = index.search_compat("pdf", 25).expect("words");
    let scores = hits.iter().map(|hit| (hit.skill.name.as_str(), hit.score));
    assert_eq!(scores.collect::<Vec<_>>(), [("two", 3.0), ("one", 1.0)]);
    assert!(hits.iter().all(|hit| hit.fields == ["tags"]));
}
