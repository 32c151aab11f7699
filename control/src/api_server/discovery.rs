//! Discovery: which versions of a kind's group the API server serves.
//!
//! <https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api>

use std::time::Duration;

use api_client::call;
use kube::Client;
use serde_json::Value;

use crate::Kind;

/// Timeout of a request; events of the kind wait for its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the API server serves a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Served {
    /// In this `GROUP/VERSION`; in the kind's own if it does in that.
    In(String),
    /// In no version of the kind's group.
    Nowhere,
    /// Discovery does not answer.
    Unknown,
}

/// Returns where a kind of a named group is served.
pub(super) async fn served(client: &Client, kind: Kind) -> Served {
    let own = kind.api_version();
    let group = own.split('/').next().unwrap_or_default();
    let list = match get(client, &format!("/apis/{group}")).await {
        None => return Served::Unknown,
        Some(None) => return Served::Nowhere,
        Some(Some(list)) => list,
    };
    let versions = list["versions"].as_array().into_iter().flatten();
    let versions = versions.filter_map(|it| it["groupVersion"].as_str());
    let mut versions: Vec<&str> =
        versions.filter(|it| it.split('/').next() == Some(group) && is_plain(it)).collect();
    // Stable: the API server names the others in its order of preference.
    versions.sort_by_key(|version| *version != own);
    for version in versions {
        match verbs(client, version, kind).await {
            None => return Served::Unknown,
            Some(verbs) if verbs.iter().any(|verb| verb == "watch") => {
                return Served::In(version.to_owned());
            }
            Some(_) => {}
        }
    }
    Served::Nowhere
}

/// Returns whether discovery lists a kind in `version` (`GROUP/VERSION`) as one whose objects may be
/// created: while its definition is being deleted, they may not. `None` if it does not answer.
pub(super) async fn is_installed(client: &Client, version: &str, kind: Kind) -> Option<bool> {
    let verbs = verbs(client, version, kind).await?;
    Some(verbs.iter().any(|verb| verb == "create"))
}

/// The verbs that objects of the kind take in `version`; none if it is not served.
async fn verbs(client: &Client, version: &str, kind: Kind) -> Option<Vec<String>> {
    let Some(list) = get(client, &format!("/apis/{version}")).await? else {
        return Some(Vec::new());
    };
    let mut resources = list["resources"].as_array()?.iter();
    let resource = resources.find(|resource| resource["name"] == kind.plural());
    let verbs = resource.and_then(|it| it["verbs"].as_array()).into_iter().flatten();
    Some(verbs.filter_map(|verb| verb.as_str().map(str::to_owned)).collect())
}

/// The outer `None`: no answer; the inner one: it is not there.
async fn get(client: &Client, path: &str) -> Option<Option<Value>> {
    match call(client, "GET", path, None, PATIENCE).await {
        Ok(value) => Some(Some(value)),
        Err(error) if error.code() == Some(404) => Some(None),
        Err(_) => None,
    }
}

/// Whether a version can stand in a path.
fn is_plain(version: &str) -> bool {
    version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-./".contains(&byte))
}
