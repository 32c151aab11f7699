//! Lists all objects of a kind once.

use serde_json::Value;

use super::Connection;
use crate::Kind;

/// Objects in one answer.
const PAGE: usize = 500;

/// All objects of a kind as the API server has them; none where the kind is not installed.
///
/// # Errors
/// Why the API server gave no list, with all causes.
pub async fn list(connection: &Connection, kind: Kind) -> Result<Vec<Value>, String> {
    let version = kind.api_version();
    let root = if version.contains('/') { "apis" } else { "api" };
    let (mut objects, mut next) = (Vec::new(), String::new());
    loop {
        let page = if next.is_empty() { String::new() } else { format!("&continue={next}") };
        let path = format!("/{root}/{version}/{}?limit={PAGE}{page}", kind.plural());
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let answer = connection.client.request::<Value>(request).await;
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(kube::Error::Api(status)) if status.code == 404 && kind.may_be_absent() => {
                return Ok(objects);
            }
            Err(error) => return Err(with_causes(&error)),
        };
        if let Value::Array(items) = answer["items"].take() {
            objects.extend(items.into_iter().map(|mut item| {
                // Items of a list do not say what they are.
                item["apiVersion"] = version.into();
                item["kind"] = kind.name().into();
                item
            }));
        }
        match answer["metadata"]["continue"].as_str() {
            Some(more) if !more.is_empty() => next = super::watch::escaped(more),
            _ => return Ok(objects),
        }
    }
}

/// An error with what caused it, as far as this says more.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text += &format!(": {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_with_its_causes() {
        #[derive(Debug)]
        struct Outer(std::io::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("cannot connect")
            }
        }
        impl std::error::Error for Outer {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(
            with_causes(&Outer(refused)),
            "cannot connect: Connection refused (os error 111)"
        );
    }
}
