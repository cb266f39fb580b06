//! The first parser: saphyr-parser, which returns each scalar as written, and its line.

use saphyr_parser::{Event, Parser, StrInput};

use crate::config::error::Fault;
use crate::config::yaml::{DEEPEST, Node, Refusal, ScalarKind, Value};

/// Parses the only document of a string, with all scalars as strings.
pub(super) fn read(text: &str) -> Result<Node<'_>, Refusal> {
    let mut reader = TreeReader { parser: Parser::new_from_str(text) };
    let mut node = None;
    loop {
        match reader.next()? {
            (Event::DocumentStart(_), line) if node.is_some() => {
                return Err((Some(line), Fault::SecondDocument));
            }
            (Event::DocumentStart(_), _) => {
                let (event, line) = reader.next()?;
                node = Some(reader.node(event, line, 0)?);
            }
            (Event::StreamEnd, _) => return node.ok_or((None, Fault::Empty)),
            _ => {}
        }
    }
}

struct TreeReader<'t> {
    parser: Parser<'t, StrInput<'t>>,
}

impl<'t> TreeReader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, u32), Refusal> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start.line() as u32)),
            Some(Err(error)) => {
                let found = error.info().to_owned();
                Err((Some(error.marker().line() as u32), Fault::Spelling { found }))
            }
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    /// Parses the node that begins with `event`, including all nodes inside it.
    fn node(&mut self, event: Event<'t>, line: u32, depth: usize) -> Result<Node<'t>, Refusal> {
        let refuse = |fault| Err((Some(line), fault));
        if depth > DEEPEST {
            return refuse(Fault::TooDeep { most: DEEPEST });
        }
        let value = match event {
            Event::Alias(_) => return refuse(Fault::Alias),
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(anchor, _)
            | Event::MappingStart(anchor, _)
                if anchor != 0 =>
            {
                return refuse(Fault::Alias);
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => return refuse(Fault::Tag),
            Event::Scalar(text, ..) => Value::Scalar(ScalarKind::Text, text),
            Event::SequenceStart(..) => Value::List(self.list(depth)?),
            Event::MappingStart(..) => Value::Map(self.map(depth)?),
            // No node begins with any other event; if one did, the parsers would disagree.
            _ => return refuse(Fault::TwoReadings),
        };
        Ok(Node { line, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node<'t>>, Refusal> {
        let mut list = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(list),
                (event, line) => list.push(self.node(event, line, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<(Node<'t>, Node<'t>)>, Refusal> {
        let mut map = Vec::new();
        loop {
            match self.next()? {
                (Event::MappingEnd, _) => return Ok(map),
                (event, line) => {
                    let key = self.node(event, line, depth + 1)?;
                    let (event, line) = self.next()?;
                    map.push((key, self.node(event, line, depth + 1)?));
                }
            }
        }
    }
}
