//! Text that kubectl reads beside YAML 1.2, indented as YAML 1.2 wants it.
//!
//! Inside of brackets and quotes libyaml, and go-yaml after it, ignore how far a line is indented, and take tabs.
//! YAML 1.2 wants such a line indented further than the block around it, by spaces. White space at the beginning of
//! such a line means nothing to either, so it may be replaced. A byte order mark may begin every document.

/// A text with the lines that begin inside of brackets and quotes indented anew; lines keep their numbers.
pub(super) fn reindented(text: &str) -> String {
    let mut scanner = Scanner::default();
    let mut result = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if scanner.is_inside() {
            let line = line.trim_start_matches([' ', '\t']);
            result.extend(std::iter::repeat_n(' ', scanner.parent + 1));
            result.push_str(line);
            scanner.line(line, 0);
        } else {
            let line = line.trim_start_matches('\u{feff}');
            result.push_str(line);
            scanner.block_line(line);
        }
    }
    result
}

/// The line, from 1, of the first action of a template, `{{`, that stands where a value of YAML begins.
pub fn template_line(text: &str) -> Option<u64> {
    let mut scanner = Scanner::default();
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        if scanner.is_inside() {
            scanner.line(line, 0);
        } else {
            scanner.block_line(line);
        }
        if scanner.has_action {
            return Some(number);
        }
    }
    None
}

/// What a line of a text begins in.
#[derive(Default)]
struct Scanner {
    /// Open brackets.
    depth: usize,
    /// The open quote.
    quote: Option<char>,
    /// The column of a block scalar's parent: all lines further in are text.
    text_below: Option<usize>,
    /// The column of the innermost block around the last line.
    parent: usize,
    /// Whether the template action `{{` began a value.
    has_action: bool,
}

impl Scanner {
    fn is_inside(&self) -> bool {
        self.depth > 0 || self.quote.is_some()
    }

    /// A line that begins outside of brackets and quotes.
    fn block_line(&mut self, line: &str) {
        let inner = line.trim_start_matches(' ');
        let indent = line.len() - inner.len();
        if let Some(parent) = self.text_below {
            if inner.trim_end().is_empty() || indent > parent {
                return;
            }
            self.text_below = None;
        }
        // Dashes of lists open blocks on the same line.
        let mut at = indent;
        let mut rest = inner;
        self.parent = indent;
        while let Some(after) = rest.strip_prefix("- ") {
            self.parent = at;
            let further = after.trim_start_matches(' ');
            at += rest.len() - further.len();
            rest = further;
        }
        self.line(rest, at);
    }

    /// The rest of a line, which begins at a column.
    fn line(&mut self, text: &str, column: usize) {
        let mut chars = text.chars().peekable();
        // Whether a plain scalar has begun, inside of which quotes and brackets are text.
        let (mut is_plain, mut is_after_space) = (false, true);
        while let Some(c) = chars.next() {
            if let Some(quote) = self.quote {
                match (c, quote) {
                    ('\\', '"') => drop(chars.next()),
                    ('\'', '\'') if chars.peek() == Some(&'\'') => drop(chars.next()),
                    (c, quote) if c == quote => self.quote = None,
                    _ => {}
                }
                (is_plain, is_after_space) = (false, false);
                continue;
            }
            let is_end = |next: Option<&char>| next.is_none_or(|next| next.is_whitespace());
            match c {
                '#' if is_after_space => return,
                ' ' | '\t' | '\r' | '\n' => {
                    is_after_space = true;
                    continue;
                }
                '{' | '[' if !is_plain || self.depth > 0 => {
                    self.has_action |= c == '{' && chars.peek() == Some(&'{') && !is_plain;
                    self.depth += 1;
                    is_plain = false;
                }
                '}' | ']' if self.depth > 0 => {
                    self.depth -= 1;
                    is_plain = false;
                }
                ',' if self.depth > 0 => is_plain = false,
                ':' if is_end(chars.peek()) => {
                    is_plain = false;
                    if self.depth == 0 {
                        self.parent = self.parent.max(column);
                    }
                }
                '"' | '\'' if !is_plain => self.quote = Some(c),
                '|' | '>' if !is_plain && self.depth == 0 => {
                    self.text_below = Some(self.parent);
                    return;
                }
                '&' | '*' | '!' if !is_plain => {
                    while !is_end(chars.peek()) {
                        chars.next();
                    }
                }
                '-' | '?' if !is_plain && is_end(chars.peek()) => {}
                _ => is_plain = true,
            }
            is_after_space = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_inside_of_brackets_and_quotes_are_indented_anew() {
        let text =
            "spec:\n  args:\n    [\n\t\"x\", # it's\n  {a: b,\n c: 'd\ne'}]\n  next: it's [\n";
        assert_eq!(
            reindented(text),
            "spec:\n  args:\n    [\n     \"x\", # it's\n     {a: b,\n     c: 'd\n     e'}]\n  next: it's [\n"
        );
        let quoted = "a:\n- b: \"one\n two\n\n  three\"\n  c: d\n";
        assert_eq!(reindented(quoted), "a:\n- b: \"one\n   two\n   \n   three\"\n  c: d\n");
    }

    #[test]
    fn block_text_and_comments_stay() {
        for text in [
            "a: |\n  [ \" {\n\n   x\nb: c\n",
            "- a: >-\n    it's {{ x\n  b: c\n",
            "- |\n  [\n- b\n",
            "# [ {\na: b # \"\nc: d's\n",
            "a: !tag \"x\"\nb: &x [c]\nd: *x\n",
        ] {
            assert_eq!(reindented(text), text);
        }
        assert_eq!(reindented("---\na: b\n---\n\u{feff}c: d\n"), "---\na: b\n---\nc: d\n");
    }

    #[test]
    fn an_action_counts_where_a_value_begins() {
        assert_eq!(template_line("a: b\nc: {{ .Values.c }}\n"), Some(2));
        assert_eq!(template_line("{{- if .x }}\na: b\n"), Some(1));
        assert_eq!(template_line("a:\n  {{- toYaml .x | nindent 2 }}\n"), Some(2));
        for text in [
            "a: \"{{ $labels.x }} is down\"\n",
            "a: it is {{ $labels.x }}\n",
            "a: |\n  {{ x }}\n",
            "# {{ x }}\na: b\n",
            "a: [b\nc: 'x {{ y }}'\n",
        ] {
            assert_eq!(template_line(text), None, "{text}");
        }
    }
}
