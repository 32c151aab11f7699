//! Lines cut into words that know where they stood.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::PortRange;

/// Why a text is no rule set, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct ParseError {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1; one past the end where something is missing.
    pub column: usize,
    /// The word found, and those expected.
    pub reason: String,
}

/// The words of one line that are still to be read.
pub(crate) struct Words<'a> {
    text: &'a str,
    line: usize,
    /// Byte where the rest begins.
    at: usize,
}

/// A word and the byte it begins at.
#[derive(Clone, Copy)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

impl<'a> Words<'a> {
    pub(crate) fn new(text: &'a str, line: usize) -> Self {
        Self { text, line, at: 0 }
    }

    /// The rest of the line, without the space before it.
    pub(crate) fn rest(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        &self.text[self.at..]
    }

    /// Where reading stands, in bytes.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Moves on by `bytes`, which must end at a character's end.
    pub(crate) fn skip(&mut self, bytes: usize) {
        self.at = (self.at + bytes).min(self.text.len());
    }

    /// The next word, if there is one.
    pub(crate) fn next(&mut self) -> Option<Word<'a>> {
        let rest = self.rest();
        let text = rest.split_whitespace().next()?;
        let at = self.at;
        self.at += text.len();
        Some(Word { text, at })
    }

    /// The next word, which `expected` names.
    pub(crate) fn expect(&mut self, expected: &str) -> Result<Word<'a>, ParseError> {
        match self.next() {
            Some(word) => Ok(word),
            None => Err(self.error(self.text.trim_end().len(), format!("expected {expected}"))),
        }
    }

    /// Takes the next word if it is `word`.
    pub(crate) fn take(&mut self, word: &str) -> bool {
        let before = self.at;
        let taken = self.next().is_some_and(|next| next.text == word);
        if !taken {
            self.at = before;
        }
        taken
    }

    /// An error at byte `at` of the line.
    pub(crate) fn error(&self, at: usize, reason: impl Into<String>) -> ParseError {
        let column = self.text.get(..at).map_or(0, |before| before.chars().count()) + 1;
        ParseError { line: self.line, column, reason: reason.into() }
    }

    /// `word` read as a number.
    pub(crate) fn number<T: FromStr>(&self, word: Word<'_>, what: &str) -> Result<T, ParseError>
    where
        T::Err: fmt::Display,
    {
        word.text.parse().map_err(|error| {
            self.error(word.at, format!("{what} {:?} is not a number in range: {error}", word.text))
        })
    }

    /// The range from `first` to `last`, which must not be contradictory.
    pub(crate) fn range(&self, first: Word<'_>, last: Word<'_>) -> Result<PortRange, ParseError> {
        let range =
            PortRange { first: self.number(first, "port")?, last: self.number(last, "port")? };
        if range.first > range.last {
            let reason = format!("range {}-{} ends before it begins", range.first, range.last);
            return Err(self.error(first.at, reason));
        }
        Ok(range)
    }
}
