//! The documents of a file, each read again only if its text has changed.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use ahash::RandomState;

use super::documents::{self, Content};
use crate::{Fault, Object};

/// The content of a part of a file: mostly of one document.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) content: Arc<Content>,
    /// The hash of its text; `None` for one that is read again in any case.
    hash: Option<u128>,
    /// Documents and lines of the file before it.
    documents: usize,
    lines: u64,
}

/// Keys of the hashes: chosen by chance, so that no text is made to have the hash of another.
#[derive(Debug, Default)]
pub(super) struct Hashers([RandomState; 2]);

impl Hashers {
    fn hash(&self, text: &[u8]) -> u128 {
        let [high, low] = self.0.each_ref().map(|hasher| u128::from(hasher.hash_one(text)));
        high << 64 | low
    }
}

impl Part {
    /// A part that is a whole file.
    pub(super) fn whole(content: Content) -> Self {
        Self { content: Arc::new(content), hash: None, documents: 0, lines: 0 }
    }

    /// Leaves its objects out.
    pub(super) fn drop_objects(&mut self) {
        Arc::make_mut(&mut self.content).objects.clear();
    }

    /// Its objects, each with the number of its document in the file.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&Object, usize)> {
        self.content.objects.iter().map(|(object, number)| (object, self.documents + number))
    }

    /// Its faults, with their places in the file.
    pub(super) fn faults(&self) -> impl Iterator<Item = Fault> {
        self.content.faults.iter().cloned().map(|mut fault| {
            fault.document = fault.document.map(|number| self.documents + number);
            if let Some(position) = &mut fault.position {
                position.line += self.lines;
            }
            fault
        })
    }
}

/// Reads the text of a file; parts whose text is one of `known` are not read again.
pub(super) fn read(file: &Path, text: &[u8], known: &[Part], hashers: &Hashers) -> Vec<Part> {
    let read = |text| documents::read(file, text, &mut |_, _, value| Some(value));
    let is_yaml = file.extension().is_none_or(|extension| extension != "json");
    let Some(texts) = split(text).filter(|_| is_yaml) else {
        return vec![Part::whole(read(text))];
    };
    let known: HashMap<u128, &Arc<Content>> =
        known.iter().filter_map(|part| Some((part.hash?, &part.content))).collect();
    let (mut parts, mut documents, mut lines) = (Vec::with_capacity(texts.len()), 0, 0);
    for part in texts {
        let hash = hashers.hash(part);
        let content = known.get(&hash).map(|content| Arc::clone(content));
        let content = content.unwrap_or_else(|| Arc::new(read(part)));
        if !content.whole {
            // Its faults have places in their words.
            return vec![Part::whole(read(text))];
        }
        let count = content.documents;
        parts.push(Part { content, hash: Some(hash), documents, lines });
        documents += count;
        lines += part.iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    parts
}

/// The texts of the documents of a YAML text, which begin with `---` (YAML 1.2.2, section 9.1.4); `None` for
/// a text with directives, which are about more than their line.
fn split(text: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut found, mut start, mut at, mut has_content) = (Vec::new(), 0, 0, false);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let marker = line.strip_prefix(b"---").map(<[u8]>::first);
        let is_marker = marker.is_some_and(|next| next.is_none_or(u8::is_ascii_whitespace));
        if line.starts_with(b"%") {
            return None;
        }
        if is_marker && has_content {
            found.push(&text[start..at]);
            start = at;
        }
        let first = line.iter().find(|byte| !byte.is_ascii_whitespace());
        has_content |= first.is_some_and(|byte| *byte != b'#');
        at += line.len();
    }
    found.push(&text[start..]);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";

    #[test]
    fn parts_are_what_the_whole_is() {
        let file = Path::new("f.yaml");
        let fault = POD.replace("{name: a}", "{name: a, labels: {on: 1}}");
        let separators =
            ["---\n", "---\n---\n", "---\n# nothing\n---\n", "--- # b\n", "...\n---\n"];
        let documents = [
            POD,
            &fault,
            "apiVersion: apps/v1\nkind: Job\nmetadata: {name: j}\n",
            "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: b}}\n",
            "# nothing\n",
            "",
            "--- |\n text\n",
            "a: |\n  ---\n  b\n",
        ];
        for separator in separators {
            for start in ["", "\n", "# about\n", separator] {
                for first in documents {
                    for second in documents {
                        let texts = [first, second, POD];
                        let text = start.to_owned() + &texts.join(separator);
                        let whole =
                            documents::read(file, text.as_bytes(), &mut |_, _, it| Some(it));
                        let parts = read(file, text.as_bytes(), &[], &Hashers::default());
                        let objects: Vec<(Object, usize)> = parts
                            .iter()
                            .flat_map(Part::objects)
                            .map(|(object, number)| (object.clone(), number))
                            .collect();
                        let faults: Vec<Fault> = parts.iter().flat_map(Part::faults).collect();
                        assert_eq!((objects, faults), (whole.objects, whole.faults), "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn documents_that_have_not_changed_are_not_read_again() {
        let (file, hashers) = (Path::new("f.yaml"), Hashers::default());
        let text = |names: &[&str]| {
            let pods = names.iter().map(|name| POD.replace("name: a", &format!("name: {name}")));
            pods.collect::<Vec<_>>().join("---\n")
        };
        let first = read(file, text(&["a", "b", "c"]).as_bytes(), &[], &hashers);
        // The first document has no marker.
        let second = read(file, text(&["a", "x", "c", "b"]).as_bytes(), &first, &hashers);
        let is_known =
            |part: &Part| first.iter().any(|known| Arc::ptr_eq(&known.content, &part.content));
        assert_eq!(second.iter().map(is_known).collect::<Vec<_>>(), [true, false, true, true]);
        let numbers: Vec<usize> = second.iter().flat_map(Part::objects).map(|it| it.1).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
    }

    #[test]
    fn a_text_with_directives_is_one_part() {
        assert_eq!(split(b"%YAML 1.2\n---\na: 1\n---\nb: 2\n"), None);
        assert_eq!(split(b"---\na: 1\n---\nb: 2\n").map(|parts| parts.len()), Some(2));
        assert_eq!(split(b"---x\na: 1\n ---\n").map(|parts| parts.len()), Some(1));
    }
}
