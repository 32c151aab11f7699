//! The text of a file of cases.
//!
//! A JSON array, JSON objects one behind the other (JSON lines too), or YAML documents; a
//! document is a case or a list of cases. Text that begins like JSON is read as JSON, and as
//! YAML only if it is none.

use control::manifests::{Tree, parse_yaml, yaml_problem};
use serde::Deserialize;
use serde_json::Value;

use super::Case;
use super::case::Fault;

/// Reads all cases.
///
/// # Errors
/// Everything that is wrong, case by case; also that there is not one document.
pub fn read(text: &[u8]) -> Result<Vec<Case>, Vec<Fault>> {
    let documents =
        documents(text).map_err(|problem| vec![Fault { case: None, field: "", problem }])?;
    if documents.is_empty() {
        return Err(vec![Fault { case: None, field: "", problem: "holds no cases".into() }]);
    }
    let (mut cases, mut faults) = (Vec::new(), Vec::new());
    let mut number = 0;
    let mut each = |document: Document, faults: &mut Vec<Fault>| {
        number += 1;
        let what = match document.0 {
            Tree::Map(fields) => {
                let fields = fields.into_iter().map(|(name, it)| (name, it.value())).collect();
                match Case::read(number, fields) {
                    Ok(case) => cases.push(case),
                    Err(found) => faults.extend(found),
                }
                return;
            }
            Tree::List(_) => "a list".into(),
            Tree::Scalar(value) => value.to_string(),
        };
        faults.push(Fault {
            case: Some(number),
            field: "",
            problem: format!("is {what} where a case's fields are wanted"),
        });
    };
    for document in documents {
        match document.0 {
            Tree::List(list) => list.into_iter().for_each(|it| each(it, &mut faults)),
            other => each(Document(other), &mut faults),
        }
    }
    if number == 0 {
        faults.push(Fault { case: None, field: "", problem: "holds no cases".into() });
    }
    if faults.is_empty() { Ok(cases) } else { Err(faults) }
}

fn documents(text: &[u8]) -> Result<Vec<Document>, String> {
    let text = crate::input::without_byte_order_mark(text);
    if !text.trim_ascii_start().starts_with(b"{") && !text.trim_ascii_start().starts_with(b"[") {
        return yaml(text).map_err(|error| format!("is no YAML: {error}"));
    }
    let json: Result<Vec<Document>, _> =
        serde_json::Deserializer::from_slice(text).into_iter().collect();
    match json {
        Ok(documents) => Ok(documents),
        Err(error) => yaml(text).map_err(|_| format!("is no JSON: {error}")),
    }
}

fn yaml(text: &[u8]) -> Result<Vec<Document>, String> {
    parse_yaml(text)
        .into_iter()
        .filter(|document| !matches!(document, Ok(Document(Tree::Scalar(Value::Null)))))
        .map(|document| document.map_err(|error| yaml_problem(&error)))
        .collect()
}

/// A document, or an element of a list.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
struct Document(Tree<Document>);

impl Document {
    /// Reads the fields; the last of equal ones counts.
    fn value(self) -> Value {
        match self.0 {
            Tree::Scalar(value) => value,
            Tree::List(list) => list.into_iter().map(Self::value).collect(),
            Tree::Map(fields) => {
                Value::Object(fields.into_iter().map(|(name, it)| (name, it.value())).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CASE: &str = r#"{"from":"a/b","to":"a/c","protocol":"TCP","port":80}"#;

    fn count(text: &str) -> usize {
        read(text.as_bytes()).unwrap_or_else(|faults| panic!("{text}: {faults:?}")).len()
    }

    fn faults(text: &str) -> Vec<String> {
        read(text.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn all_ways_to_write_cases() {
        assert_eq!(count(CASE), 1);
        assert_eq!(count(&format!("[{CASE},\n{CASE}]")), 2);
        assert_eq!(count(&format!("{CASE}\n{CASE}{CASE}\n")), 3);
        assert_eq!(count(&format!("\u{feff}{CASE}")), 1);
        assert_eq!(count(&format!("{CASE}\n---\n{CASE}\n")), 2);
        assert_eq!(count("from: a/b\nto: 10.0.0.1\nprotocol: ICMP\n"), 1);
        assert_eq!(count("{from: a/b, to: fd00::1, protocol: UDP, port: dns}"), 1);
        let list = "---\n# two\n- {from: a/b, to: a/c, protocol: TCP, port: 1}\n- from: a/b\n  \
                    to: a/c\n  protocol: SCTP\n  port: 2\n---\n";
        assert_eq!(count(&format!("{list}{list}")), 4);
        assert_eq!(faults("[]"), ["holds no cases"]);
    }

    #[test]
    fn fields_keep_their_order_and_unknown_ones_stay() {
        let cases = read(br#"{"z":1,"to":"a/c","from":"a/b","protocol":"ICMP","a":{"x":[]}}"#);
        let names: Vec<String> =
            cases.unwrap().remove(0).fields.into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["z", "to", "from", "protocol", "a"]);
    }

    #[test]
    fn faults_have_the_number_of_their_case() {
        assert_eq!(faults(""), ["holds no cases"]);
        assert_eq!(
            faults(&format!("[{CASE}, 7, [1], null]")),
            [
                "case 2: is 7 where a case's fields are wanted",
                "case 3: is a list where a case's fields are wanted",
                "case 4: is null where a case's fields are wanted",
            ]
        );
        assert_eq!(
            faults(&format!("{CASE}\n{}", r#"{"from":"a/b","to":"a/c","protocol":"TCP"}"#)),
            ["case 2: port: is missing"]
        );
        assert!(faults(&format!("{CASE}\n{{\"from\"")).concat().starts_with("is no JSON: "));
        assert!(faults("from: [\n").concat().starts_with("is no YAML: "));
        assert_eq!(faults("no case"), ["case 1: is \"no case\" where a case's fields are wanted"]);
        let twice = r#"{"from":"a/b","from":"a/b","to":"a/c","protocol":"ICMP"}"#;
        assert_eq!(faults(twice), ["case 1: the field \"from\" is given twice"]);
    }

    #[test]
    fn deep_and_binary_input_is_refused() {
        assert!(read("[".repeat(100_000).as_bytes()).is_err());
        assert!(read(("a: ".to_owned() + &"[".repeat(100_000)).as_bytes()).is_err());
        assert!(read(b"\x00\xff\xfe{}").is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_too_strange(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&text);
        }

        #[test]
        fn no_almost_case_is_too_strange(
            text in "[\\[{]?(\"?(from|to|protocol|port|expect|x)\"?: ?(\"?[a-z0-9/.:]{0,12}\"?|-?[0-9]{1,9}|null|\\[\\]),?\n? ?){0,6}[\\]}]?"
        ) {
            if let Err(faults) = read(text.as_bytes()) {
                prop_assert!(!faults.is_empty());
                prop_assert!(faults.iter().all(|fault| !fault.problem.is_empty()));
            }
        }

        #[test]
        fn what_was_read_can_be_written_and_read_again(
            port in 1..=u16::MAX, from in "[a-z]{1,5}/[a-z0-9]{1,5}", note in any::<Option<String>>()
        ) {
            let value = serde_json::json!({
                "from": from, "to": "x/y", "protocol": "TCP", "port": port, "note": note});
            let cases = read(value.to_string().as_bytes()).unwrap();
            let again: serde_json::Map<String, Value> =
                cases[0].fields.iter().cloned().collect();
            prop_assert_eq!(Value::Object(again), value);
        }
    }
}
