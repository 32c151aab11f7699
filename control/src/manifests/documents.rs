//! The text of one manifest file to objects.
//!
//! Numbers where text is wanted are faults, as for the API server.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::Adapt;
use super::json::Strict;
use super::located::{Located, WITHIN};
use super::parsed::Text;
use super::yaml::{parse_manifest, parse_yaml, yaml_problem};
use crate::objects::{self, Read};
use crate::{Fault, FieldFault, Object, ObjectRef, Position};

/// The content of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    pub(super) objects: Vec<(Object, usize)>,
    pub(super) skipped: BTreeMap<String, usize>,
    pub(super) faults: Vec<Fault>,
    /// Whether the text itself could be read to its end.
    pub(super) whole: bool,
    /// Whether it may contain a damaged object: a document that names none, or an empty text.
    pub(super) unclear: bool,
    /// Number of its documents.
    pub(super) documents: usize,
}

/// A document, or why there is none, and where.
pub(super) type Document = Result<Value, (String, Option<Position>)>;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Whether a file has JSON.
pub(super) fn is_json(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "json")
}

/// The documents of a text, up to the first error.
pub(super) fn parse(text: &Text) -> Vec<Document> {
    let bytes = text.text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text.text);
    if text.is_json {
        return parse_json(bytes);
    }
    let problem = |error: serde_saphyr::Error| {
        let position = error.location().map(|it| Position { line: it.line(), column: it.column() });
        (format!("is no YAML: {}", yaml_problem(&error)), position)
    };
    let documents: Vec<Document> =
        parse_manifest(bytes).into_iter().map(|value| value.map_err(problem)).collect();
    if documents.last().is_some_and(Result::is_err) && bytes.trim_ascii_start().starts_with(b"{") {
        // Documents of JSON, one after the other, are no YAML.
        let json = parse_json(bytes);
        if json.last().is_some_and(Result::is_ok) {
            return json;
        }
    }
    documents
}

/// The documents of a text of JSON, one after the other, up to the first error.
fn parse_json(text: &[u8]) -> Vec<Document> {
    let problem = |error: serde_json::Error| {
        let position = Position { line: error.line() as u64, column: error.column() as u64 };
        (format!("is no JSON: {error}"), Some(position))
    };
    let values = serde_json::Deserializer::from_slice(text).into_iter();
    values.map(|value| value.map(|Strict(value)| value).map_err(problem)).collect()
}

/// Reads the text of `file`; every object in it goes through `adapt` first.
pub(super) fn read(file: &Path, text: &[u8], adapt: &mut Adapt<'_>) -> Content {
    let parsed = parse(&Text { is_json: is_json(file), text: text.into() });
    read_parsed(file, text, parsed, adapt)
}

/// The same of a text that was parsed.
pub(super) fn read_parsed(
    file: &Path,
    text: &[u8],
    documents: Vec<Document>,
    adapt: &mut Adapt<'_>,
) -> Content {
    let blank = text.iter().all(u8::is_ascii_whitespace);
    let mut content = Content { whole: true, unclear: blank, ..Content::default() };
    content.documents = documents.len();
    for (value, number) in documents.into_iter().zip(1..) {
        match value {
            Ok(Value::Null) => {}
            Ok(value) => {
                document(value, &Place { file, number, within: "" }, adapt, &mut content);
            }
            Err((problem, position)) => {
                content.whole = false;
                content.faults.push(Fault {
                    file: Some(file.to_path_buf()),
                    document: Some(number),
                    position,
                    object: None,
                    fault: FieldFault::new("", problem),
                });
            }
        }
    }
    // Most documents have one object, and there may be thousands of them.
    content.objects.shrink_to_fit();
    locate(&mut content.faults, text);
    content
}

/// Adds to faults of fields where these stand, and takes the path of a list's item off them.
fn locate(faults: &mut [Fault], text: &[u8]) {
    if faults.iter().all(|fault| fault.position.is_some()) {
        return;
    }
    let documents: Vec<Located> = parse_yaml(text).into_iter().map_while(Result::ok).collect();
    for fault in faults.iter_mut().filter(|fault| fault.position.is_none()) {
        let Some(document) = fault.document else { continue };
        let document = document.checked_sub(1).and_then(|it| documents.get(it));
        let at = document.map(|it| it.nearest(&fault.fault.field)).filter(|it| it.line > 0);
        fault.position = at.map(|it| Position { line: it.line, column: it.column });
        if let Some((_, inner)) = fault.fault.field.rsplit_once(WITHIN) {
            // An item that is no object has no other name than its path.
            fault.fault.field = match fault.object {
                Some(_) => inner.to_owned(),
                None => fault.fault.field.replace(WITHIN, ": ").trim_end_matches(": ").to_owned(),
            };
        }
    }
}

/// The position of a value.
struct Place<'a> {
    file: &'a Path,
    /// The document, from 1.
    number: usize,
    /// The path of the list's item that it is; empty for a document.
    within: &'a str,
}

impl Place<'_> {
    fn fault(&self, object: Option<ObjectRef>, mut fault: FieldFault) -> Fault {
        if !self.within.is_empty() {
            // Removed once its position is known.
            fault.field = format!("{}{WITHIN}{}", self.within, fault.field);
        }
        Fault {
            file: Some(self.file.to_path_buf()),
            document: Some(self.number),
            position: None,
            object,
            fault,
        }
    }
}

fn document(value: Value, place: &Place<'_>, adapt: &mut Adapt<'_>, content: &mut Content) {
    let is_object = |it: &Value| it.get("kind").is_some() || it.get("apiVersion").is_some();
    let (list, items) = match value {
        // A list outside of any object: of objects, or of something else.
        Value::Array(items) if items.iter().any(is_object) => (String::new(), Ok(items)),
        Value::Array(items) => {
            if adapt(place.file, place.number, Value::Array(items)).is_some() {
                content.unclear = true;
                *content.skipped.entry("no object".into()).or_default() += 1;
            }
            return;
        }
        value => match list_items(&value) {
            Some(items) => ("items".to_owned(), items),
            None => {
                if let Some(value) = adapt(place.file, place.number, value) {
                    object(value, place, content);
                }
                return;
            }
        },
    };
    let items = match items {
        Ok(items) => items,
        Err(problem) => {
            content.unclear = true;
            return content.faults.push(place.fault(None, problem));
        }
    };
    for (index, item) in items.into_iter().enumerate() {
        if list.is_empty() && !is_object(&item) {
            content.unclear = true;
            *content.skipped.entry("no object".into()).or_default() += 1;
            continue;
        }
        let within = format!("{}{list}[{index}]", place.within);
        document(item, &Place { within: &within, ..*place }, adapt, content);
    }
}

fn object(value: Value, place: &Place<'_>, content: &mut Content) {
    let named = value.pointer("/metadata/name").is_some();
    match objects::read(value) {
        Read::Object(object, faults) => {
            let reference = object.reference();
            let faults = faults.into_iter().map(|it| place.fault(Some(reference.clone()), it));
            content.faults.extend(faults);
            content.objects.push((object, place.number));
        }
        Read::OtherKind(kind) => {
            content.unclear |= !named;
            *content.skipped.entry(kind).or_default() += 1;
        }
        Read::Nothing(found) | Read::Refused(found) => {
            content.unclear = true;
            content.faults.push(place.fault(None, found));
        }
    }
}

/// The objects of a `List` or a `…List`; items without kind (as the API server sends them)
/// get the list's. `None` if this is no list.
fn list_items(value: &Value) -> Option<Result<Vec<Value>, FieldFault>> {
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let item_kind = text("kind")?.strip_suffix("List")?;
    let items = match value.get("items") {
        None if !item_kind.is_empty() => return None,
        None | Some(Value::Null) => return Some(Ok(Vec::new())),
        Some(Value::Array(items)) => items,
        Some(_) => return Some(Err(FieldFault::new("items", "is no list"))),
    };
    let api_version = text("apiVersion");
    let complete = |item: &Value| {
        let mut item = item.clone();
        if let (Value::Object(fields), false) = (&mut item, item_kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| item_kind.into());
            if let Some(version) = api_version {
                fields.entry("apiVersion").or_insert_with(|| version.into());
            }
        }
        item
    };
    Some(Ok(items.iter().map(complete).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &Path, text: &[u8]) -> Content {
        super::read(file, text, &mut |_, _, value| Some(value))
    }

    fn yaml(text: &str) -> Content {
        read(Path::new("f.yaml"), text.as_bytes())
    }

    fn names(content: &Content) -> Vec<String> {
        content.objects.iter().map(|(object, _)| object.reference().to_string()).collect()
    }

    fn faults(content: &Content) -> Vec<String> {
        content.faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn documents_lists_and_other_kinds() {
        let content = yaml(
            "# nothing\n---\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n\
             apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n}}\n\
             - {apiVersion: v1, kind: Secret}\n---\napiVersion: v1\nkind: PodList\nitems:\n\
             - metadata: {name: b, namespace: x}\n---\n{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \
             \"metadata\": {\"name\": \"c\"}}\n",
        );
        assert_eq!(names(&content), ["Pod default/a", "Node n", "Pod x/b", "Pod default/c"]);
        assert_eq!(content.skipped, BTreeMap::from([("Secret".to_owned(), 1)]));
        assert_eq!(faults(&content), Vec::<String>::new());
        assert!(content.whole);
    }

    #[test]
    fn a_fault_names_file_document_object_and_field() {
        let content = yaml(
            "kind: Pod\napiVersion: v1\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\n\
             metadata:\n  name: b\n  namespace: x\n  labels: {on: 1}\n",
        );
        assert_eq!(
            faults(&content),
            ["f.yaml: document 2 (Pod x/b): metadata.labels.on: 1 is not text; put it in quotes"]
        );
    }

    /// `sigs.k8s.io/yaml`, which kubectl reads with, resolves plain scalars as YAML 1.1; `y` and `n`
    /// too, which are names here.
    #[test]
    fn plain_scalars_are_what_kubectl_takes_them_for() {
        let of = |text: &str| {
            let mut value = Value::Null;
            let document = format!("kind: Pod\napiVersion: v1\nx: {text}\n");
            super::read(Path::new("f.yaml"), document.as_bytes(), &mut |_, _, read| {
                value = read["x"].clone();
                None
            });
            value
        };
        for (text, meant) in [
            ("yes", true.into()),
            ("No", false.into()),
            ("on", true.into()),
            ("OFF", false.into()),
            ("y", "y".into()),
            ("N", "N".into()),
            ("true", true.into()),
            ("0400", 256.into()),
            ("-010", (-8).into()),
            ("0o400", 256.into()),
            ("0x1F", 31.into()),
            ("0b11", 3.into()),
            ("1_000", 1000.into()),
            ("0", 0.into()),
            ("~", Value::Null),
            ("\"yes\"", "yes".into()),
            ("'0400'", "0400".into()),
            ("!!str no", "no".into()),
            ("yesterday", "yesterday".into()),
            ("10.0.0.0/8", "10.0.0.0/8".into()),
            ("1:30", "1:30".into()),
            ("2026-11-25", "2026-11-25".into()),
        ] {
            assert_eq!(of(text), meant, "{text}");
        }
        let content = yaml(
            "kind: Pod\napiVersion: v1\nmetadata:\n  name: a\n  labels: {canary: yes}\nspec:\n  \
             hostNetwork: yes\n  volumes: [{secret: {defaultMode: 0400}}]\n",
        );
        assert_eq!(
            faults(&content),
            [
                "f.yaml: document 1 (Pod default/a): metadata.labels.canary: true is not text (nor are yes, no, \
              on and off without quotes); put it in quotes"
            ]
        );
        let (Object::Pod(pod), _) = &content.objects[0] else { panic!("{content:?}") };
        assert!(!pod.is_on_pod_network());
    }

    #[test]
    fn a_fault_has_line_and_column_also_inside_a_list() {
        let content = yaml(
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata:\n    \
             name: a\n    labels:\n      on: 1\n---\na: 1\nb: 2\na: 3\n",
        );
        let at = |fault: &Fault| fault.position.map(|it| (it.line, it.column));
        assert_eq!(at(&content.faults[0]), Some((9, 11)));
        assert_eq!(content.faults[0].fault.field, "metadata.labels.on");
        assert_eq!(at(&content.faults[1]).map(|it| it.0), Some(13));
        assert_eq!(
            content.faults[1].to_string(),
            "f.yaml: document 2: is no YAML: \"a\" is given twice (line 13, column 1)"
        );
    }

    #[test]
    fn a_list_of_something_else_ends_nothing_and_a_list_of_objects_is_read() {
        let content = yaml(
            "- from: a/b\n  to: c/d\n---\n- {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- 7\n",
        );
        assert_eq!(names(&content), ["Pod default/a"]);
        assert_eq!(faults(&content), Vec::<String>::new());
        assert_eq!(content.skipped, BTreeMap::from([("no object".to_owned(), 2)]));
    }

    #[test]
    fn an_item_that_is_no_object_is_named_by_its_place() {
        let content = yaml("apiVersion: v1\nkind: List\nitems:\n- {metadata: {name: a}}\n");
        let said = faults(&content);
        assert!(said[0].starts_with("f.yaml: document 1: items[0]: kind: missing"), "{said:?}");
        assert_eq!(content.faults[0].position.map(|it| it.line), Some(4));
    }

    /// What libyaml reads, and kubectl with it.
    #[test]
    fn text_that_kubectl_reads_is_read() {
        let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n";
        let document =
            "{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {\"name\": \"c\"}}";
        for (text, pods) in [
            (
                format!(
                    "{head}spec:\n  containers:\n  - args:\n      [\n        \"-jar\",\n\t\"x\",\n      ]\n"
                ),
                1,
            ),
            (format!("{head}spec:\n  containers:\n  - args: [a,\n  b\n]\n"), 1),
            (
                format!("{head}  annotations:\n").replace("{name: a}", "\n  name: a")
                    + "    x: \"one\n two\n  three\"\n",
                1,
            ),
            (format!("{head}---\n\u{feff}{head}").replacen("name: a", "name: b", 1), 2),
            (format!("{document}\n{}\n", document.replace("\"c\"", "\"d\"")), 2),
            (format!("\u{feff}{document}"), 1),
        ] {
            let content = yaml(&text);
            assert_eq!((faults(&content), names(&content).len()), (Vec::new(), pods), "{text}");
        }
        let json = |text: &str| read(Path::new("f.json"), text.as_bytes());
        assert_eq!(names(&json(&format!("\u{feff}{document}{document}"))).len(), 2);
        let twice = json(&document.replace("\"kind\"", "\"kind\": \"Node\", \"kind\""));
        assert!(faults(&twice)[0].contains("\"kind\" is given twice"), "{:?}", twice.faults);
    }

    #[test]
    fn broken_text_is_a_fault_and_what_came_before_is_read() {
        let content = yaml("kind: Pod\napiVersion: v1\nmetadata: {name: a}\n---\nkind: [\n");
        assert_eq!(names(&content), ["Pod default/a"]);
        assert!(!content.whole);
        assert!(faults(&content)[0].starts_with("f.yaml: document 2: is no YAML: "));
        assert!(!read(Path::new("f.json"), b"{\"kind\": ").whole);
        assert!(!yaml("a: 1\na: 2\n").whole);
        assert!(!read(Path::new("f.yaml"), b"a: \xc3\x28").whole);
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let alias = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", vec![alias; 10].join(", "));
        }
        assert!(!yaml(&text).whole);
    }

    #[test]
    fn deep_nesting_is_refused() {
        assert!(!yaml(&("a: ".to_owned() + &"[".repeat(5_000))).whole);
        assert!(!read(Path::new("f.json"), "[".repeat(50_000).as_bytes()).whole);
    }
}
