//! A value with the line and column of each of its parts.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

/// A value and its place in the text.
#[derive(Clone, Debug)]
pub struct Located {
    /// The value.
    pub tree: Tree<Self>,
    /// Its line, from 1.
    pub line: u64,
    /// Its column, from 1.
    pub column: u64,
}

/// A value whose parts are of type `T`.
#[derive(Clone, Debug)]
pub enum Tree<T> {
    /// Fields in the order of the text.
    Map(Vec<(String, T)>),
    /// Elements.
    List(Vec<T>),
    /// Anything else.
    Scalar(Value),
}

/// Between the path of a list's item and the field of the object that it is.
pub(super) const WITHIN: char = '\u{1f}';

impl Located {
    /// A field of a map.
    pub fn get(&self, field: &str) -> Option<&Self> {
        match &self.tree {
            Tree::Map(fields) => fields.iter().find(|(name, _)| name == field).map(|(_, it)| it),
            _ => None,
        }
    }

    /// The fields of a map; nothing for other values.
    pub fn fields(&self) -> &[(String, Self)] {
        if let Tree::Map(fields) = &self.tree { fields } else { &[] }
    }

    /// The elements of a list; nothing for other values.
    pub fn elements(&self) -> &[Self] {
        if let Tree::List(elements) = &self.tree { elements } else { &[] }
    }

    /// Whether it is a list.
    pub fn is_list(&self) -> bool {
        matches!(self.tree, Tree::List(_))
    }

    /// The text of a string.
    pub fn text(&self) -> Option<&str> {
        if let Tree::Scalar(Value::String(text)) = &self.tree { Some(text) } else { None }
    }

    /// The value at a path such as `spec.ingress[0].from`, or the innermost one around it.
    pub fn nearest(&self, path: &str) -> &Self {
        let (mut at, mut rest) = (self, path);
        while let Some((inner, after)) = at.step(rest) {
            (at, rest) = (inner, after);
        }
        at
    }

    /// The part that a path begins with, and the path behind it.
    fn step<'p>(&self, path: &'p str) -> Option<(&Self, &'p str)> {
        let path = path.trim_start_matches(['.', WITHIN]);
        match &self.tree {
            Tree::Scalar(_) => None,
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
                let fitting =
                    fields.iter().filter_map(|(name, it)| Some((name, it, rest_of(name)?)));
                let (_, inner, rest) = fitting.max_by_key(|(name, ..)| name.len())?;
                Some((inner, rest))
            }
        }
    }

    /// The value without places. Of equal fields the last counts.
    pub fn value(&self) -> Value {
        match &self.tree {
            Tree::Scalar(value) => value.clone(),
            Tree::List(list) => list.iter().map(Self::value).collect(),
            Tree::Map(fields) => {
                let fields = fields.iter().map(|(name, it)| (name.clone(), it.value()));
                Value::Object(fields.collect::<Map<_, _>>())
            }
        }
    }
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tree<Self>>::deserialize(deserializer)?;
        let (line, column) = (spanned.referenced.line(), spanned.referenced.column());
        Ok(Self { tree: spanned.value, line, column })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Tree<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Shape(PhantomData))
    }
}

struct Shape<T>(PhantomData<T>);

macro_rules! scalars {
    ($($name:ident: $type:ty),*) => {
        $(fn $name<E: de::Error>(self, value: $type) -> Result<Tree<T>, E> {
            Ok(Tree::Scalar(value.into()))
        })*
    };
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Shape<T> {
    type Value = Tree<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree<T>, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Tree::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree<T>, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Tree::List(elements))
    }

    scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E: de::Error>(self) -> Result<Tree<T>, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Tree<T>, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Tree<T>, D::Error> {
        Tree::deserialize(inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::parse_yaml;

    fn read(text: &[u8]) -> Vec<Located> {
        parse_yaml(text).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn every_value_knows_its_place() {
        let documents =
            read(b"a: 1\n---\nspec:\n  ingress:\n  - from: []\n    ports: [{port: 80}]\n");
        let from = documents[1].nearest("spec.ingress[0].from");
        assert_eq!((from.line, from.column), (5, 11));
        let port = documents[1].nearest("spec.ingress[0].ports[0].port");
        assert_eq!((port.line, port.value()), (6, 80.into()));
        // A path that ends too early gives the place where it ends.
        assert_eq!(
            documents[1].nearest("spec.ingress[4].from").line,
            documents[1].nearest("spec.ingress").line
        );
        let json = read(b"{\"kind\": \"Pod\",\n \"metadata\": {\"name\": \"x\"}}");
        assert_eq!(json[0].nearest("metadata.name").line, 2);
    }

    #[test]
    fn a_field_is_found_by_line_and_column_or_what_is_around_it() {
        let documents = read(
            b"kind: Pod\n---\nmetadata:\n  labels:\n    a.b/c: 1\nspec:\n  list:\n  - {x: 7}\n",
        );
        let find = |document: usize, field| {
            let it = documents[document - 1].nearest(field);
            (it.line, it.column)
        };
        assert_eq!(find(1, "kind"), (1, 7));
        assert_eq!(find(2, "metadata.labels.a.b/c"), (5, 12));
        assert_eq!(find(2, "spec.list[0].x"), (8, 9));
        assert_eq!(find(2, "spec.list[0].missing.more"), (8, 5));
    }
}
