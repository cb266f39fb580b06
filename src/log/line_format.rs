//! Lines that are parsed with regular expressions, such as those of nginx and Apache.

use regex::bytes::{CaptureLocations, Regex, RegexBuilder};

use crate::log::fault::Fault;
use crate::log::record::Record;

/// The format of lines, as regular expressions.
#[derive(Clone, Debug)]
pub struct LineFormat {
    /// The first pattern that matches is used. If it does not match the whole line, such as a pattern for
    /// a name and its value, it is matched repeatedly.
    patterns: Vec<(Regex, CaptureLocations)>,
    /// Groups of the patterns, from 1, each with its slot.
    wanted: Vec<(usize, usize)>,
}

impl LineFormat {
    /// Creates a format from patterns, which are tried in this order. They match bytes, not Unicode.
    ///
    /// # Errors
    /// A pattern is not a valid regular expression.
    pub fn new(
        patterns: &[String],
        wanted: Vec<(usize, usize)>,
    ) -> Result<LineFormat, regex::Error> {
        let patterns = patterns.iter().map(|pattern| {
            let regex = RegexBuilder::new(pattern).unicode(false).build()?;
            let locations = regex.capture_locations();
            Ok((regex, locations))
        });
        Ok(LineFormat { patterns: patterns.collect::<Result<_, _>>()?, wanted })
    }

    pub(super) fn read<'a>(
        &mut self,
        line: &'a [u8],
        record: &mut Record<'a>,
    ) -> Result<(), Fault> {
        for (pattern, groups) in &mut self.patterns {
            let mut end = 0;
            while end < line.len()
                && let Some(found) = pattern.captures_read_at(groups, line, end)
            {
                for &(group, slot) in &self.wanted {
                    if let Some((start, end)) = groups.get(group) {
                        record.fill(slot, &line[start..end]);
                    }
                }
                end = found.end().max(end + 1);
            }
            if end > 0 {
                return Ok(());
            }
        }
        Err(Fault::Format)
    }
}
