//! The text form of rules, one a line.
//!
//! ```text
//! # action protocol [flags VALUE/MASK] from END [port RANGE] to END [port RANGE] [by "ORIGIN"]
//! permit tcp from set 7 to any port 6379 by "NetworkPolicy default/db ingress[0]"
//! deny   tcp flags 0x02/0x12 from any port 1024-65535 to set 3
//! pass   icmp type 8 code 0 from any to any
//! deny   any from any to any
//! ```
//!
//! Protocols are `any`, `tcp`, `udp`, `sctp`, `icmp`, `icmp6` or a number; an end is
//! `any`, or `set` and the set's number. What prints parses to the same rule.

use std::fmt;
use std::str::FromStr;

use crate::words::{ParseError, Word, Words};
use crate::{Action, End, PeerSetId, PortRange, Rule, TcpFlags};

/// Reads rules, one a line; empty lines and lines that begin with `#` are skipped.
///
/// # Errors
/// Names line and column of the first fault: an unknown word, a range that ends before it begins, or
/// something missing or left over.
///
/// ```
/// let rules = acl::parse_rules("permit tcp from set 1 to any port 80\ndeny any from any to any");
/// assert_eq!(rules.unwrap().len(), 2);
/// let error = acl::parse_rules("permit tcp from any to all").unwrap_err();
/// assert_eq!(error.to_string(), "line 1, column 24: \"all\" is neither any nor set");
/// ```
pub fn parse_rules(text: &str) -> Result<Vec<Rule>, ParseError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !matches!(line.trim_start().chars().next(), None | Some('#')))
        .map(|(index, line)| rule(&mut Words::new(line, index + 1)))
        .collect()
}

impl FromStr for Rule {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        rule(&mut Words::new(text, 1))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let icmp = self.protocol.is_some_and(is_icmp);
        write!(f, "{} ", self.action)?;
        match self.protocol {
            None => f.write_str("any")?,
            Some(number) => match NAMES.iter().find(|(_, known)| *known == number) {
                Some((name, _)) => f.write_str(name)?,
                None => write!(f, "{number}")?,
            },
        }
        if icmp {
            ports(f, "type", self.source_ports)?;
            ports(f, "code", self.destination_ports)?;
        }
        if self.tcp_flags != TcpFlags::ANY {
            write!(f, " flags {:#04x}/{:#04x}", self.tcp_flags.value, self.tcp_flags.mask)?;
        }
        write!(f, " from {}", self.source)?;
        if !icmp {
            ports(f, "port", self.source_ports)?;
        }
        write!(f, " to {}", self.destination)?;
        if !icmp {
            ports(f, "port", self.destination_ports)?;
        }
        if self.origin.is_empty() {
            return Ok(());
        }
        f.write_str(" by \"")?;
        for letter in self.origin.to_string().chars() {
            match ESCAPES.iter().find(|(plain, _)| *plain == letter) {
                Some((_, escape)) => write!(f, "\\{escape}")?,
                None => write!(f, "{letter}")?,
            }
        }
        f.write_str("\"")
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
            Self::Pass => "pass",
        })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Set(set) => write!(f, "set {}", set.0),
        }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

fn ports(f: &mut fmt::Formatter<'_>, what: &str, range: PortRange) -> fmt::Result {
    if range == PortRange::ANY { Ok(()) } else { write!(f, " {what} {range}") }
}

/// IANA's numbers of the protocols that have a name here.
const NAMES: [(&str, u8); 5] = [("tcp", 6), ("udp", 17), ("sctp", 132), ("icmp", 1), ("icmp6", 58)];

/// Stands behind a backslash in an origin for characters that cannot stand there.
const ESCAPES: [(char, char); 4] = [('\\', '\\'), ('"', '"'), ('\n', 'n'), ('\r', 'r')];

fn is_icmp(protocol: u8) -> bool {
    protocol == 1 || protocol == 58
}

fn rule(words: &mut Words<'_>) -> Result<Rule, ParseError> {
    let word = words.expect("an action")?;
    let action = match word.text {
        "permit" => Action::Permit,
        "deny" => Action::Deny,
        "pass" => Action::Pass,
        other => {
            let reason = format!("unknown action {other:?}; known are permit, deny and pass");
            return Err(words.error(word.at, reason));
        }
    };
    let mut rule = Rule { protocol: protocol(words)?, ..Rule::new(action, "") };
    let icmp = rule.protocol.is_some_and(is_icmp);
    if icmp {
        rule.source_ports = optional_range(words, "type")?;
        rule.destination_ports = optional_range(words, "code")?;
    }
    if words.take("flags") {
        rule.tcp_flags = tcp_flags(words)?;
    }
    keyword(words, "from")?;
    rule.source = end(words)?;
    if !icmp {
        rule.source_ports = optional_range(words, "port")?;
    }
    keyword(words, "to")?;
    rule.destination = end(words)?;
    if !icmp {
        rule.destination_ports = optional_range(words, "port")?;
    }
    if words.take("by") {
        rule.origin = origin(words)?.as_str().into();
    }
    match words.next() {
        None => Ok(rule),
        Some(word) => Err(words.error(word.at, format!("unexpected {:?}", word.text))),
    }
}

fn protocol(words: &mut Words<'_>) -> Result<Option<u8>, ParseError> {
    let word = words.expect("a protocol")?;
    if word.text == "any" {
        return Ok(None);
    }
    match NAMES.iter().find(|(name, _)| *name == word.text) {
        Some((_, number)) => Ok(Some(*number)),
        None => words.number(word, "protocol").map(Some),
    }
}

fn tcp_flags(words: &mut Words<'_>) -> Result<TcpFlags, ParseError> {
    let word = words.expect("VALUE/MASK")?;
    let byte = |text: &str| u8::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let flags = word.text.split_once('/').and_then(|(value, mask)| {
        let flags = TcpFlags { value: byte(value)?, mask: byte(mask)? };
        (flags.value & !flags.mask == 0).then_some(flags)
    });
    flags.ok_or_else(|| {
        let reason = format!("flags {:?} are not 0xVALUE/0xMASK with VALUE inside MASK", word.text);
        words.error(word.at, reason)
    })
}

fn end(words: &mut Words<'_>) -> Result<End, ParseError> {
    let word = words.expect("an end")?;
    match word.text {
        "any" => Ok(End::Any),
        "set" => {
            let word = words.expect("a set's number")?;
            words.number(word, "set").map(|set| End::Set(PeerSetId(set)))
        }
        other => Err(words.error(word.at, format!("{other:?} is neither any nor set"))),
    }
}

fn optional_range(words: &mut Words<'_>, what: &str) -> Result<PortRange, ParseError> {
    if !words.take(what) {
        return Ok(PortRange::ANY);
    }
    let word = words.expect("a number or a range")?;
    let (first, last) = word.text.split_once('-').unwrap_or((word.text, word.text));
    let last_at = word.at + word.text.len() - last.len();
    words.range(Word { text: first, at: word.at }, Word { text: last, at: last_at })
}

fn keyword(words: &mut Words<'_>, keyword: &str) -> Result<(), ParseError> {
    let word = words.expect(keyword)?;
    if word.text == keyword {
        return Ok(());
    }
    Err(words.error(word.at, format!("expected {keyword:?}, found {:?}", word.text)))
}

/// The text between quotes.
fn origin(words: &mut Words<'_>) -> Result<String, ParseError> {
    let rest = words.rest();
    let start = words.position();
    let mut letters = rest.char_indices();
    if letters.next().is_none_or(|(_, letter)| letter != '"') {
        return Err(words.error(start, "expected an origin in double quotes"));
    }
    let mut origin = String::new();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => {
                words.skip(at + 1);
                return Ok(origin);
            }
            '\\' => {
                let escape = letters.next().map(|(_, letter)| letter);
                let plain = ESCAPES.iter().find(|(_, known)| Some(*known) == escape);
                let (plain, _) =
                    plain.ok_or_else(|| words.error(start + at, "unknown escape in the origin"))?;
                origin.push(*plain);
            }
            _ => origin.push(letter),
        }
    }
    Err(words.error(start, "the origin's closing quote is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_what_it_read() {
        for line in [
            "permit tcp from set 7 to any port 6379 by \"NetworkPolicy default/db\"",
            "deny tcp flags 0x02/0x12 from any port 1024-65535 to set 3",
            "pass icmp type 8 code 0 from any to any",
            "pass icmp6 type 128-129 from any to any",
            "deny 47 from set 0 to any",
            "deny any from any to any by \"a \\\"b\\\" \\\\ \\n\"",
        ] {
            assert_eq!(line.parse::<Rule>().expect(line).to_string(), line);
        }
    }

    #[test]
    fn faults_name_line_and_column() {
        for (text, expected) in [
            ("", "line 1, column 1: expected an action"),
            (
                "allow tcp",
                "line 1, column 1: unknown action \"allow\"; known are permit, deny and pass",
            ),
            (
                "deny tpc",
                "line 1, column 6: protocol \"tpc\" is not a number in range: invalid digit found in string",
            ),
            (
                "deny 256",
                "line 1, column 6: protocol \"256\" is not a number in range: number too large to fit in target type",
            ),
            ("deny tcp", "line 1, column 9: expected from"),
            (
                "deny tcp from any port 9-8 to any",
                "line 1, column 24: range 9-8 ends before it begins",
            ),
            (
                "deny tcp from any port 9-x to any",
                "line 1, column 26: port \"x\" is not a number in range: invalid digit found in string",
            ),
            (
                "deny tcp flags 0x03/0x02 from any to any",
                "line 1, column 16: flags \"0x03/0x02\" are not 0xVALUE/0xMASK with VALUE inside MASK",
            ),
            ("deny tcp from ätsch to any", "line 1, column 15: \"ätsch\" is neither any nor set"),
            (
                "deny tcp from set ä to any",
                "line 1, column 19: set \"ä\" is not a number in range: invalid digit found in string",
            ),
            (
                "deny tcp from any to any by x",
                "line 1, column 29: expected an origin in double quotes",
            ),
            (
                "deny tcp from any to any by \"x",
                "line 1, column 29: the origin's closing quote is missing",
            ),
            (
                "deny tcp from any to any by \"x\\y\"",
                "line 1, column 31: unknown escape in the origin",
            ),
            ("deny tcp from any to any by \"x\" y", "line 1, column 33: unexpected \"y\""),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap_err().to_string(), expected, "{text}");
        }
        let error = parse_rules("# fine\n\ndeny any from any to any\n  deny").unwrap_err();
        assert_eq!(error.to_string(), "line 4, column 7: expected a protocol");
    }
}
