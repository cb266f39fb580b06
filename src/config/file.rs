//! Reads files.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::config::error::{ConfigError, Fault};

/// The maximum size of a file in bytes: 16 MiB.
const LARGEST: usize = 16 << 20;

/// The content of a file, and the name of the file for messages.
pub(super) struct File {
    pub name: Arc<str>,
    pub text: String,
}

impl File {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<File, ConfigError> {
        let name: Arc<str> = path.display().to_string().into();
        let refuse = |line, fault| ConfigError::one(Arc::clone(&name), line, fault);
        let bytes = bytes(path).map_err(|fault| refuse(None, fault))?;
        if bytes.len() > LARGEST {
            return Err(refuse(None, Fault::TooLarge { most: LARGEST }));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + valid.iter().filter(|&&byte| byte == b'\n').count();
            refuse(Some(line as u32), Fault::NotUtf8)
        })?;
        Ok(File::ended(name, text))
    }

    /// Returns a string from another source as a file.
    pub(super) fn of(name: &str, text: &str) -> Result<File, ConfigError> {
        let name: Arc<str> = name.into();
        if text.len() > LARGEST {
            return Err(ConfigError::one(name, None, Fault::TooLarge { most: LARGEST }));
        }
        Ok(File::ended(name, text.to_owned()))
    }

    /// Ends the last line: without that, YAML parsers disagree about a block of text there.
    fn ended(name: Arc<str>, mut text: String) -> File {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        File { name, text }
    }
}

/// Reads a file, up to one byte more than allowed.
fn bytes(path: &Path) -> Result<Vec<u8>, Fault> {
    // Opening a pipe blocks until there is a writer, and no signal interrupts that.
    if is_pipe(path).map_err(Fault::Unreadable)? {
        return Err(Fault::Pipe);
    }
    let read = || -> io::Result<Vec<u8>> {
        #[expect(clippy::disallowed_methods, reason = "this is the one reader of files")]
        let file = std::fs::File::open(path)?;
        let mut bytes = Vec::new();
        file.take(LARGEST as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(Fault::Unreadable)
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    #[expect(clippy::disallowed_methods, reason = "this is the one reader of files")]
    let metadata = std::fs::metadata(path)?;
    Ok(metadata.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe(_: &Path) -> io::Result<bool> {
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_texts_are_refused() {
        let most = " ".repeat(LARGEST);
        assert!(File::of("<defaults>", &most).is_ok());
        let error = File::of("<defaults>", &(most + " ")).err().map(|error| error.to_string());
        let expected = "<defaults>: a limits file must be at most 16777216 bytes long";
        assert_eq!(error.as_deref(), Some(expected));
    }
}
