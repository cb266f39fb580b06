//! Passes PyO3's configuration on, so that `cfg(Py_GIL_DISABLED)` means the same here as in PyO3.
//! Writes the macro `doc`, which expands to the docstring of an item of the stub.
//! Passes the functions that `src/bindings/guarded_calls.rs` guards to the linker.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "python")]
    {
        pyo3_build_config::use_pyo3_cfgs();
        if let Err(error) = write_docs().and_then(|()| guard_calls()) {
            println!("cargo::error={error}");
        }
    }
}

#[cfg(feature = "python")]
#[expect(clippy::disallowed_methods, reason = "a build reads files, and Cargo sets its variables")]
fn write_docs() -> Result<(), Box<dyn std::error::Error>> {
    use std::{env, fs, path::Path};

    const STUB: &str = "python/penstock/_core.pyi";
    println!("cargo::rerun-if-changed={STUB}");
    let docs = docstrings(&fs::read_to_string(STUB)?).map_err(|error| format!("{STUB}:{error}"))?;
    let mut arms = String::new();
    for (item, text) in docs {
        arms += &format!("({item}) => {{ {text:?} }};\n");
    }
    let message = format!("concat!(\"{STUB} has no docstring of \", stringify!($($item)*))");
    let unknown = format!("($($item:tt)*) => {{ compile_error!({message}) }};");
    let path = Path::new(&env::var("OUT_DIR")?).join("docs.rs");
    fs::write(path, format!("macro_rules! doc {{\n{arms}{unknown}\n}}\n"))?;
    Ok(())
}

/// Sends the calls of each guarded function to its guard.
#[cfg(feature = "python")]
#[expect(clippy::disallowed_methods, reason = "a build reads files, and Cargo sets its variables")]
fn guard_calls() -> Result<(), Box<dyn std::error::Error>> {
    use std::{env, fs};

    const GUARDS: &str = "src/bindings/guarded_calls.rs";
    println!("cargo::rerun-if-changed={GUARDS}");
    let (os, library) = (env::var("CARGO_CFG_TARGET_OS")?, env::var("CARGO_CFG_TARGET_ENV")?);
    if (os.as_str(), library.as_str()) == ("linux", "gnu") {
        let source = fs::read_to_string(GUARDS)?;
        let table = source.lines().filter_map(|line| line.strip_prefix("    fn "));
        for name in
            table.filter_map(|line| line.split('(').next()).filter(|name| name.contains("Py"))
        {
            println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap={name}");
        }
    }
    Ok(())
}

/// Returns the docstrings of the classes, methods and functions of a stub, each with its name, such
/// as `Limiter.spend`. Of several overloads, only the first has a docstring.
///
/// # Errors
/// The number of a line, and what is wrong: a public item has no docstring, or its docstring is not
/// laid out as Ruff does it.
#[cfg(any(feature = "python", test))]
pub fn docstrings(stub: &str) -> Result<Vec<(String, String)>, String> {
    let mut docs: Vec<(String, String)> = Vec::new();
    let mut class = None;
    let mut lines = (1..).zip(stub.lines());
    while let Some((number, line)) = lines.next() {
        let statement = line.trim_start();
        let indent = line.len() - statement.len();
        let keyword = ["class ", "def "].into_iter().find(|word| statement.starts_with(word));
        let Some(keyword) = keyword else { continue };
        let name = statement[keyword.len()..].split(['(', ':']).next().unwrap_or_default();
        let item = match (keyword, indent, class) {
            ("class ", 0, _) => {
                class = Some(name);
                name.to_owned()
            }
            ("def ", 0, _) => name.to_owned(),
            ("def ", 4, Some(class)) => format!("{class}.{name}"),
            _ => return Err(format!("{number}: {name} is neither at the top nor in a class")),
        };
        let mut end = line;
        while !end.ends_with([':', '.']) {
            (_, end) = lines.next().ok_or_else(|| format!("{number}: {item} has no end"))?;
        }
        let is_known = docs.iter().any(|(known, _)| *known == item);
        if end.ends_with("...") && (is_known || name.starts_with('_')) {
            continue;
        }
        let first = lines.next().and_then(|(_, line)| line.trim_start().strip_prefix("\"\"\""));
        let first = first.filter(|_| end.ends_with(':') && !is_known);
        let first = first.ok_or_else(|| format!("{number}: {item} needs one docstring"))?;
        let text = docstring(first, indent + 4, &mut lines)
            .ok_or_else(|| format!("{number}: the docstring of {item} is malformed"))?;
        docs.push((item, text));
    }
    Ok(docs)
}

/// Returns the docstring that begins with `first`, without its indentation; `None` if it has no
/// end, a line that is not indented, or a backslash or quotes that would need escaping.
#[cfg(any(feature = "python", test))]
fn docstring<'a>(
    first: &str,
    indent: usize,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Option<String> {
    let mut text = first.to_owned();
    while !text.ends_with("\"\"\"") {
        let (_, line) = lines.next()?;
        let (margin, line) = line.split_at_checked(indent).unwrap_or((line, ""));
        if !margin.trim().is_empty() {
            return None;
        }
        text.push('\n');
        text.push_str(line);
    }
    let text = text.strip_suffix("\"\"\"")?.trim_end();
    let is_valid = !text.is_empty() && !text.contains('\\') && !text.contains("\"\"\"");
    is_valid.then(|| text.to_owned())
}
