//! The reader with which the build takes the docstrings of the stub.

#[expect(dead_code, reason = "the build script runs `main`")]
#[path = "../../build.rs"]
mod build;

use std::fs;

use build::docstrings;

#[test]
fn docstrings_lose_their_indentation_and_keep_their_lines() {
    let stub = r#"
class A(B):
    """One.

        Two.
    """

    def f(
        self,
    ) -> C:
        """Three."""
    def g(self) -> C:
        """Four."""

def h() -> D:
    """Five."""
"#;
    let docs = docstrings(stub).unwrap();
    let docs: Vec<_> = docs.iter().map(|(item, text)| (item.as_str(), text.as_str())).collect();
    let expected = [("A", "One.\n\n    Two."), ("A.f", "Three."), ("A.g", "Four."), ("h", "Five.")];
    assert_eq!(docs, expected);
}

#[test]
fn private_items_and_later_overloads_need_no_docstring() {
    let stub = r#"
def f(a: int) -> int:
    """One."""
def f(a: str) -> str: ...
def _g() -> int: ...
"#;
    assert_eq!(docstrings(stub).unwrap(), [("f".to_owned(), "One.".to_owned())]);
}

#[test]
fn stub_that_documents_less_or_otherwise_is_refused() {
    let refused = [
        ("def f() -> int: ...\n", "1: f needs one docstring"),
        ("\ndef f() -> int:\n    ...\n", "2: f needs one docstring"),
        ("class A: ...\n", "1: A needs one docstring"),
        (
            "def f() -> int:\n    \"\"\"A.\"\"\"\ndef f() -> int:\n    \"\"\"A.\"\"\"\n",
            "3: f needs one docstring",
        ),
        ("def f(\n    a: int,\n", "1: f has no end"),
        ("def f() -> int:\n    \"\"\"\"\"\"\n", "1: the docstring of f is malformed"),
        ("def f() -> int:\n    \"\"\"A.\n", "1: the docstring of f is malformed"),
        ("def f() -> int:\n    \"\"\"A.\n  B.\n    \"\"\"\n", "1: the docstring of f is malformed"),
        ("def f() -> int:\n    \"\"\"A \\n.\"\"\"\n", "1: the docstring of f is malformed"),
        ("    def f() -> int: ...\n", "1: f is neither at the top nor in a class"),
        ("if a:\n  class B: ...\n", "2: B is neither at the top nor in a class"),
    ];
    for (stub, error) in refused {
        assert_eq!(docstrings(stub).unwrap_err(), error, "{stub}");
    }
}

#[test]
fn stub_of_the_core_documents_every_public_item() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/python/penstock/_core.pyi");
    let docs = docstrings(&fs::read_to_string(path).unwrap()).unwrap();
    assert!(docs.len() >= 150, "{}", docs.len());
}
