//! Invalid limits files, and their error messages.
//!
//! Each `tests/data/limits/busted_*.yaml` must fail with the message in its leading comment lines.

use std::path::{Path, PathBuf};

use penstock::config::{self, Names};
use penstock::engine::registry::Registry;

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

fn files(folder: &Path, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(prefix)).collect()
}

fn error_of(defaults: &str, overrides: Option<&str>) -> String {
    config::parse(defaults, overrides, None).unwrap_err().to_string()
}

#[test]
fn every_busted_file_fails_with_the_message_at_its_head() {
    let folder = data("limits");
    let names = Names {
        class: "LimitName".into(),
        members: vec![("NewOrdersPerAccount".into(), 3, "regId".parse().unwrap())],
    };
    let busted = files(&folder, "busted_");
    assert!(busted.len() >= 49, "found {}", busted.len());
    for name in busted {
        let path = folder.join(&name);
        let result = if name.starts_with("busted_overrides_") {
            config::load(&folder.join("working_defaults.yaml"), Some(&path), None)
        } else {
            config::load(&path, None, name.starts_with("busted_named_").then_some(&names))
        };
        let Err(error) = result else { panic!("{name} loads") };
        let text = std::fs::read_to_string(&path).unwrap();
        let head = text.lines().map_while(|line| line.strip_prefix("# "));
        let message = error.to_string().replace(&format!("{}/", folder.display()), "");
        assert_eq!(message, head.collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn errors_in_text_without_a_file_have_a_placeholder_name() {
    let fault = "A: {burst: 0, count: 1, period: 1s}";
    assert_eq!(error_of(fault, None), "<defaults>:1: A: burst must be at least 1, found 0");
    let keyed = "A:1: {burst: 0, count: 1, period: 1s}";
    assert_eq!(error_of("{}", Some(keyed)), "<overrides>:1: A: burst must be at least 1, found 0");
}

#[test]
fn a_file_without_limits_must_contain_an_empty_collection() {
    for (defaults, overrides) in [("{}", None), ("{}", Some("[]")), ("{}", Some("{}"))] {
        let registry = config::parse(defaults, overrides, None).unwrap();
        assert!(registry.entries().is_empty());
    }
    for overrides in ["", "\n", "# nothing\n", "---", "null", "~"] {
        assert!(error_of("{}", Some(overrides)).contains("the file is empty"), "{overrides:?}");
    }
}

#[test]
fn a_file_that_is_not_text_fails_with_its_line() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, bytes, expected) in [
        ("latin1", &b"A:\n  burst: 1 # gr\xf6\xdfe\n"[..], ":2: a limits file must be UTF-8"),
        (
            "nul",
            b"A:\n  burst: 1\0\n",
            r#":2: a limits file must not contain control characters, found "\0""#,
        ),
        ("utf16", b"\xff\xfeA\0", ":1: a limits file must be UTF-8"),
        (
            "escape",
            b"A: \x1b[2J\n",
            r#":1: a limits file must not contain control characters, found "\u{1b}""#,
        ),
    ] {
        let path = folder.join(format!("busted_{name}.yaml"));
        std::fs::write(&path, bytes).unwrap();
        let message = config::load(&path, None, None).unwrap_err().to_string();
        assert_eq!(message, format!("{}{expected}", path.display()));
    }
    let path = folder.join("working_bom.yaml");
    std::fs::write(&path, "\u{feff}A: {burst: 1, count: 1, period: 1s}\r\n").unwrap();
    assert_eq!(config::load(&path, None, None).unwrap().entries().len(), 1);
}

#[test]
fn a_file_that_cannot_be_read_is_reported_by_name() {
    let folder = data("limits");
    for path in [folder.join("no_such_file.yaml"), folder.clone(), PathBuf::new()] {
        let error = config::load(&path, None, None).unwrap_err();
        let expected = format!("{}: cannot be read: ", path.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
        let (problems, source) = (error.problems(), std::error::Error::source(&error));
        assert!(problems.len() == 1 && problems[0].line.is_none() && source.is_some());
    }
}

#[test]
fn a_file_may_have_the_maximum_size_but_no_more() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("large.yaml");
    let limit = "A: {burst: 1, count: 1, period: 1s}\n#";
    let mut text = limit.to_owned() + &"x".repeat((16 << 20) - limit.len());
    std::fs::write(&path, &text).unwrap();
    assert_eq!(config::load(&path, None, None).unwrap().entries().len(), 1);
    text.push('x');
    std::fs::write(&path, &text).unwrap();
    let message = config::load(&path, None, None).unwrap_err().to_string();
    assert!(message.ends_with("large.yaml: a limits file must be at most 16777216 bytes long"));
}

#[test]
fn only_the_first_hundred_errors_are_reported() {
    let faults: String = (0..250).map(|limit| format!("L{limit}: 1\n")).collect();
    let error = config::parse(&faults, None, None).unwrap_err();
    assert_eq!(error.problems().len(), 100);
    assert_eq!(error.problems()[99].limit.as_deref(), Some("L99"));
    assert!(error.to_string().ends_with("\nand 150 more"), "{error}");
}

#[test]
fn a_huge_value_is_not_echoed() {
    let huge = "x".repeat(1_000_000);
    for text in [
        format!("A: {huge}"),
        format!("{huge}: 1"),
        format!("A: {{{huge}: 1}}"),
        format!("A: {{algorithm: {huge}}}"),
        format!("A: {{mode: {huge}, burst: 1, count: 1, period: 1s}}"),
        format!("A: {{burst: {huge}, count: 1, period: {huge}, id: {huge}, docs: {huge}}}"),
        format!("A: {{burst: 1{}, count: 1, period: 1s}}", huge.replace('x', "0")),
    ] {
        let message = error_of(&text, None);
        assert!(message.len() < 4000, "{} bytes: {}", message.len(), &message[..300]);
    }
}

#[test]
fn names_of_limits_without_a_file_are_validated() {
    let limit = config::limit_text("100/minute").unwrap();
    let with_names =
        |names: &[&str]| config::from_limits(names.iter().map(|name| ((*name).to_owned(), limit)));
    let registry = with_names(&["a", "b"]).unwrap();
    assert_eq!(registry.entry("b").unwrap().default_rule().limit, limit);
    assert_eq!(with_names(&[]).unwrap(), Registry::default());
    assert_eq!(with_names(&["a:b"]).unwrap_err().to_string(), {
        r#""a:b": a limit's name must not contain a colon, found "a:b""#
    });
    assert_eq!(with_names(&["a", "a"]).unwrap_err().to_string(), "a: duplicate limit name");
}
