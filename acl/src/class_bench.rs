//! The filter format of ClassBench (Taylor and Turner, INFOCOM 2005).
//!
//! ```text
//! @source/len  destination/len  low : high  low : high  protocol/mask  flags/mask
//! ```

use crate::words::{ParseError, Word, Words};
use crate::{Action, End, PortRange, Rule};

/// Reads a ClassBench filter set, one filter a line, the first match winning.
///
/// The format has no actions: every rule permits. An origin is `filter` and the line's
/// number. `0.0.0.0/0` becomes [`End::Any`], as the format knows IPv4 only. Protocol masks
/// are all or nothing. The flags column is checked for its form and not used: its sixteen
/// bits are not those of any header.
///
/// # Errors
/// Names line and column of the first fault.
pub fn parse_class_bench(text: &str) -> Result<Vec<Rule>, ParseError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| filter(&mut Words::new(line, index + 1), index + 1))
        .collect()
}

fn filter(words: &mut Words<'_>, line: usize) -> Result<Rule, ParseError> {
    let first = words.expect("@ and a network")?;
    let Some(source) = first.text.strip_prefix('@') else {
        return Err(words.error(first.at, "a filter begins with @"));
    };
    let source = end(words, Word { text: source, at: first.at + 1 })?;
    let word = words.expect("a network")?;
    let destination = end(words, word)?;
    let mut rule = Rule::new(Action::Permit, format!("filter {line}"))
        .source(source)
        .destination(destination)
        .source_ports(range(words)?)
        .destination_ports(range(words)?);
    let word = words.expect("protocol/mask")?;
    rule.protocol = match hex_pair(words, word)? {
        (_, 0) => None,
        (protocol, 0xff) => Some(protocol as u8),
        (_, mask) => {
            let reason = format!("protocol mask {mask:#04x} is neither 0x00 nor 0xFF");
            return Err(words.error(word.at, reason));
        }
    };
    if let Some(flags) = words.next() {
        hex_pair(words, flags)?;
    }
    match words.next() {
        None => Ok(rule),
        Some(word) => Err(words.error(word.at, format!("unexpected {:?}", word.text))),
    }
}

fn end(words: &Words<'_>, word: Word<'_>) -> Result<End, ParseError> {
    let net = words.net(word)?;
    Ok(if net.prefix_len() == 0 { End::Any } else { End::Net(net) })
}

fn range(words: &mut Words<'_>) -> Result<PortRange, ParseError> {
    let first = words.expect("a port")?;
    let colon = words.expect("\":\"")?;
    if colon.text != ":" {
        return Err(words.error(colon.at, format!("expected \":\", found {:?}", colon.text)));
    }
    let last = words.expect("a port")?;
    words.range(first, last)
}

fn hex_pair(words: &Words<'_>, word: Word<'_>) -> Result<(u16, u16), ParseError> {
    let number = |text: &str| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    word.text
        .split_once('/')
        .and_then(|(value, mask)| Some((number(value)?, number(mask)?)))
        .ok_or_else(|| words.error(word.at, format!("{:?} is not 0xVALUE/0xMASK", word.text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_filters() {
        let text = "\
@10.116.49.199/32\t0.0.0.0/0\t0 : 65535\t3306 : 3306\t0x06/0xFF\t0x0000/0x0000\t
@0.0.0.0/0\t10.0.0.0/8\t1 : 2\t0 : 65535\t0x00/0x00\t0x1000/0x1000
";
        let rules: Vec<String> =
            parse_class_bench(text).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            rules,
            [
                "permit tcp from 10.116.49.199/32 to any port 3306 by \"filter 1\"",
                "permit any from any port 1-2 to 10.0.0.0/8 by \"filter 2\"",
            ]
        );
    }

    #[test]
    fn faults_name_line_and_column() {
        for (text, expected) in [
            ("10.0.0.0/8", "line 1, column 1: a filter begins with @"),
            (
                "\n@10.0.0.1/8",
                "line 2, column 2: 10.0.0.1/8 has host bits set; the network is 10.0.0.0/8",
            ),
            ("@10.0.0.0/8 0.0.0.0/0 5 : 4", "line 1, column 23: range 5-4 ends before it begins"),
            ("@10.0.0.0/8 0.0.0.0/0 5 - 6", "line 1, column 25: expected \":\", found \"-\""),
            (
                "@1.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0x0F",
                "line 1, column 34: protocol mask 0x0f is neither 0x00 nor 0xFF",
            ),
            (
                "@1.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06",
                "line 1, column 34: \"0x06\" is not 0xVALUE/0xMASK",
            ),
            ("@1.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1", "line 1, column 33: expected protocol/mask"),
        ] {
            assert_eq!(parse_class_bench(text).unwrap_err().to_string(), expected, "{text}");
        }
    }
}
