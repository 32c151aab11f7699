//! Finds the position of a field in a file. The file is parsed a second time, and only if it has faults.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::documents::WITHIN;
use crate::Position;

/// The documents of a file, in order, as far as they can be parsed.
pub(super) struct Positions(Vec<Spanned<Tree>>);

/// A value without its scalars.
#[derive(Debug)]
enum Tree {
    Scalar,
    List(Vec<Spanned<Tree>>),
    Map(Vec<(String, Spanned<Tree>)>),
}

impl Positions {
    pub(super) fn of(text: &[u8]) -> Self {
        let mut reader = text;
        let documents =
            serde_saphyr::read_with_options(&mut reader, super::documents::options(text.len()));
        Self(documents.map_while(Result::ok).collect())
    }

    /// Returns the position of `field` of a document (from 1), or of the innermost part around it.
    pub(super) fn find(&self, document: usize, field: &str) -> Option<Position> {
        let mut at = self.0.get(document.checked_sub(1)?)?;
        let mut rest = field;
        while let Some((inner, after)) = step(&at.value, rest) {
            (at, rest) = (inner, after);
        }
        let (line, column) = (at.referenced.line(), at.referenced.column());
        (line > 0).then_some(Position { line, column })
    }
}

/// The part of a value that a field's path begins with, and the path behind it.
fn step<'t, 'f>(tree: &'t Tree, path: &'f str) -> Option<(&'t Spanned<Tree>, &'f str)> {
    let path = path.trim_start_matches(['.', WITHIN]);
    match tree {
        Tree::Scalar => None,
        Tree::List(list) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            Some((list.get(index.parse::<usize>().ok()?)?, rest))
        }
        Tree::Map(fields) => {
            let rest_of = |name: &str| {
                let rest = path.strip_prefix(name)?;
                (rest.is_empty() || rest.starts_with(['.', '[', WITHIN])).then_some(rest)
            };
            // Names may hold dots: the longest one that fits is meant.
            let fitting = fields.iter().filter_map(|(name, it)| Some((name, it, rest_of(name)?)));
            let (_, inner, rest) = fitting.max_by_key(|(name, ..)| name.len())?;
            Some((inner, rest))
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

/// Every scalar is the same.
macro_rules! scalars {
    ($($name:ident: $type:ty),*) => {
        $(fn $name<E>(self, _: $type) -> Result<Tree, E> {
            Ok(Tree::Scalar)
        })*
    };
}

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut all = Vec::new();
        while let Some(element) = list.next_element()? {
            all.push(element);
        }
        Ok(Tree::List(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut all = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            all.push((key, map.next_value()?));
        }
        // The rest of a broken map is unusable.
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Tree::Map(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_line_and_column_or_what_is_around_it() {
        let text =
            "kind: Pod\n---\nmetadata:\n  labels:\n    a.b/c: 1\nspec:\n  list:\n  - {x: 7}\n";
        let positions = Positions::of(text.as_bytes());
        let find = |document, field| {
            positions.find(document, field).map(|it| (it.line, it.column)).unwrap()
        };
        assert_eq!(find(1, "kind"), (1, 7));
        assert_eq!(find(2, "metadata.labels.a.b/c"), (5, 12));
        assert_eq!(find(2, "spec.list[0].x"), (8, 9));
        assert_eq!(find(2, "spec.list[0].missing.more"), (8, 5));
        assert_eq!(positions.find(3, "spec"), None);
        assert_eq!(Positions::of(b"a: [").find(1, "a"), None);
    }
}
