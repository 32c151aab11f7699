//! YAML and JSON with the line and column of every value.

use std::fmt;

use control::manifests::yaml_problem;
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

/// A value and its place in the text.
#[derive(Clone, Debug)]
pub struct Located {
    /// The value.
    pub tree: Tree,
    /// Its line, from 1.
    pub line: u64,
    /// Its column, from 1.
    pub column: u64,
}

/// A value whose parts have places.
#[derive(Clone, Debug)]
pub enum Tree {
    /// Fields in the order of the text.
    Map(Vec<(String, Located)>),
    /// Elements.
    List(Vec<Located>),
    /// Anything else.
    Scalar(Value),
}

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

    /// The value at a path such as `spec.ingress[0].from`, or the last one on the way to it that
    /// exists.
    pub fn nearest(&self, path: &str) -> &Self {
        let mut at = self;
        for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
            let next = match part.strip_suffix(']').and_then(|index| index.parse::<usize>().ok()) {
                Some(index) => at.elements().get(index),
                None => at.get(part),
            };
            match next {
                Some(next) => at = next,
                None => break,
            }
        }
        at
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

/// Reads every document of a text; empty ones are null.
///
/// # Errors
/// Why the text is no YAML.
pub fn documents(text: &[u8]) -> Result<Vec<Located>, String> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let most = 1_000 + text.len();
    let budget = serde_saphyr::budget! {
        max_reader_input_bytes: Some(most),
        max_events: most,
        max_nodes: most,
        max_documents: most,
        max_total_scalar_bytes: 2 * most,
        max_aliases: 1_000,
        max_anchors: 1_000,
    };
    let options =
        serde_saphyr::options! { budget: budget, strict_booleans: true, with_snippet: false };
    let mut reader = text;
    let mut documents = Vec::new();
    for document in serde_saphyr::read_with_options::<_, Located>(&mut reader, options) {
        match document {
            Ok(document) => documents.push(document),
            Err(error) => {
                return Err(format!("is no YAML: {}", yaml_problem(&error)));
            }
        }
    }
    Ok(documents)
}

impl<'de> Deserialize<'de> for Located {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tree>::deserialize(deserializer)?;
        let (line, column) = (spanned.referenced.line(), spanned.referenced.column());
        Ok(Self { tree: spanned.value, line, column })
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Shape)
    }
}

struct Shape;

impl<'de> Visitor<'de> for Shape {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Tree::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = list.next_element()? {
            elements.push(element);
        }
        Ok(Tree::List(elements))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Tree, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Tree, D::Error> {
        Tree::deserialize(inner)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_knows_its_place() {
        let text = b"a: 1\n---\nspec:\n  ingress:\n  - from: []\n    ports: [{port: 80}]\n";
        let documents = documents(text).unwrap();
        let from = documents[1].nearest("spec.ingress[0].from");
        assert_eq!((from.line, from.column), (5, 11));
        let port = documents[1].nearest("spec.ingress[0].ports[0].port");
        assert_eq!((port.line, port.value()), (6, 80.into()));
        // A path that ends too early gives the place where it ends.
        assert_eq!(
            documents[1].nearest("spec.ingress[4].from").line,
            documents[1].nearest("spec.ingress").line
        );
        let json = documents_of(b"{\"kind\": \"Pod\",\n \"metadata\": {\"name\": \"x\"}}");
        assert_eq!(json[0].nearest("metadata.name").line, 2);
    }

    fn documents_of(text: &[u8]) -> Vec<Located> {
        documents(text).unwrap()
    }
}
