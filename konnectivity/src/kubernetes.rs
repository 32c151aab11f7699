//! Requests to the Kubernetes API: tokens and leases.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use api_client::{Failure, RequestError, TokenReview, call, review_token};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

/// A connection to the Kubernetes API.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cluster")
    }
}

/// Parameters of the servers' leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Their namespace.
    pub namespace: String,
    /// Labels of our own, `key=value`.
    pub labels: Vec<(String, String)>,
    /// Label selector of all of them.
    pub selector: String,
}

/// Duration of a lease, and the interval of renewal.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const RENEWAL: Duration = Duration::from_secs(15);
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

impl LeaseOptions {
    /// Reads labels like `k8s-app=konnectivity-server`.
    ///
    /// # Errors
    /// Fails if they are not pairs.
    pub fn new(namespace: &str, labels: &str) -> Result<Self, String> {
        let pairs = labels.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("lease label '{pair}' is not key=value"))?;
            match key.trim().is_empty() {
                true => Err(format!("lease label '{pair}' has no key")),
                false => Ok((key.trim().to_owned(), value.trim().to_owned())),
            }
        });
        let labels: Vec<_> = pairs.collect::<Result<_, _>>()?;
        if labels.is_empty() {
            return Err("lease labels: at least one is needed".to_owned());
        }
        let pairs: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(Self { namespace: namespace.to_owned(), labels, selector: pairs.join(",") })
    }

    /// Leases to count, by a label selector such as `app=server,tier in (a, b),!old`, which the
    /// API server parses.
    pub fn selected(namespace: &str, selector: &str) -> Self {
        Self { namespace: namespace.to_owned(), labels: Vec::new(), selector: selector.to_owned() }
    }
}

impl Cluster {
    /// With a kubeconfig file, or the pod's own service account.
    ///
    /// # Errors
    /// Names the file.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, String> {
        let config = match kubeconfig {
            None => Config::infer().await.map_err(|error| format!("kubernetes: {error}"))?,
            Some(path) => {
                let named = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
                let file = Kubeconfig::read_from(path).map_err(|error| named(&error))?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(|error| named(&error))?
            }
        };
        let client = api_client::client(config).map_err(|error| format!("kubernetes: {error}"))?;
        Ok(Self { client })
    }

    /// Returns the user of a token, by a TokenReview. Errors go to the agent that sent the token.
    pub(crate) async fn review(&self, token: &str, audience: &str) -> Result<String, String> {
        match review_token(&self.client, token, Some(audience), TIMEOUT).await {
            Ok(TokenReview::Valid(user)) => {
                Ok(user["username"].as_str().unwrap_or_default().to_owned())
            }
            Ok(TokenReview::Invalid(why)) => {
                let why = why.as_deref().unwrap_or("service account jwt not valid");
                Err(format!("lookup failed: {why}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Makes or renews the lease called `name`.
    pub(crate) async fn renew(
        &self,
        options: &LeaseOptions,
        name: &str,
        holder: &str,
    ) -> Result<(), RequestError> {
        let folder = leases(&options.namespace);
        let path = format!("{folder}/{name}");
        let now = crate::clock::now();
        let mut lease = match self.request("GET", &path, None).await {
            Ok(lease) => lease,
            Err(error) if error.code() == Some(404) => json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name, "namespace": options.namespace},
                "spec": {"acquireTime": now},
            }),
            Err(error) => return Err(error),
        };
        for (key, value) in &options.labels {
            lease["metadata"]["labels"][key] = json!(value);
        }
        lease["spec"]["holderIdentity"] = json!(holder);
        lease["spec"]["leaseDurationSeconds"] = json!(LEASE.as_secs());
        lease["spec"]["renewTime"] = json!(now);
        match lease["metadata"]["resourceVersion"].is_string() {
            true => self.request("PUT", &path, Some(&lease)).await?,
            false => self.request("POST", &folder, Some(&lease)).await?,
        };
        Ok(())
    }

    /// Counts the valid leases, and returns the names of the others. `observe` gets the outcome of
    /// the request.
    pub(crate) async fn count(
        &self,
        options: &LeaseOptions,
        observe: impl FnOnce(&Answered),
    ) -> Result<(usize, Vec<String>), RequestError> {
        let selector = utf8_percent_encode(&options.selector, ESCAPED);
        let path = format!("{}?labelSelector={selector}", leases(&options.namespace));
        let answer = observed(self.request("GET", &path, None), observe).await?;
        let items = answer["items"].as_array().cloned().unwrap_or_default();
        let now = jiff::Timestamp::now();
        let (valid, expired): (Vec<_>, Vec<_>) =
            items.iter().partition(|lease| is_valid(&lease["spec"], now));
        let name = |lease: &&Value| lease["metadata"]["name"].as_str().map(str::to_owned);
        Ok((valid.len(), expired.iter().filter_map(name).collect()))
    }

    /// Removes a lease.
    pub(crate) async fn remove(
        &self,
        options: &LeaseOptions,
        name: &str,
        observe: impl FnOnce(&Answered),
    ) -> Result<(), RequestError> {
        let path = format!("{}/{name}", leases(&options.namespace));
        observed(self.request("DELETE", &path, None), observe).await?;
        Ok(())
    }

    async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, RequestError> {
        call(&self.client, method, path, body, TIMEOUT).await
    }
}

/// Outcome of a request, for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answered {
    /// HTTP status code.
    pub(crate) code: u16,
    /// The API's reason, such as `NotFound`; empty for success.
    pub(crate) reason: String,
    pub(crate) took: Duration,
}

async fn observed(
    request: impl Future<Output = Result<Value, RequestError>>,
    observe: impl FnOnce(&Answered),
) -> Result<Value, RequestError> {
    let start = Instant::now();
    let result = request.await;
    let (code, reason) = match &result {
        Ok(_) => (200, String::new()),
        Err(RequestError { cause: Failure::Refused { code, reason, .. }, .. }) => {
            (*code, reason.clone())
        }
        Err(_) => return result,
    };
    observe(&Answered { code, reason, took: start.elapsed() });
    result
}

/// Characters that a query's value escapes (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

fn is_valid(spec: &Value, now: jiff::Timestamp) -> bool {
    let renewed = spec["renewTime"].as_str().or(spec["acquireTime"].as_str());
    let renewed = renewed.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let seconds = spec["leaseDurationSeconds"].as_i64();
    match (renewed, seconds) {
        (Some(renewed), Some(seconds)) => {
            renewed.as_second().saturating_add(seconds) > now.as_second()
        }
        _ => false,
    }
}

/// Checks that a user is this service account; the error names the difference.
pub(crate) fn is_service_account(user: &str, namespace: &str, name: &str) -> Result<(), String> {
    let parts: Vec<&str> = user.split(':').collect();
    let ["system", "serviceaccount", its_namespace, its_name] = parts[..] else {
        return Err(format!("lookup failed: '{user}' is not a service account"));
    };
    if its_namespace != namespace {
        return Err(format!(
            "lookup failed: incoming request from \"{its_namespace}\" namespace. \
             Expected \"{namespace}\""
        ));
    }
    if its_name != name {
        return Err(format!(
            "lookup failed: incoming request from \"{its_name}\" service account. \
             Expected \"{name}\""
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_a_service_account() {
        let user = "system:serviceaccount:kube-system:konnectivity-agent";
        assert_eq!(is_service_account(user, "kube-system", "konnectivity-agent"), Ok(()));
        for (user, word) in [
            ("system:serviceaccount:default:konnectivity-agent", "\"default\" namespace"),
            ("system:serviceaccount:kube-system:other", "\"other\" service account"),
            ("system:admin", "not a service account"),
            ("", "not a service account"),
        ] {
            let error = is_service_account(user, "kube-system", "konnectivity-agent").unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn leases_expire() {
        let now: jiff::Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let lease = |renewed: &str| json!({"renewTime": renewed, "leaseDurationSeconds": 30});
        assert!(is_valid(&lease("2026-01-01T00:00:31.000000Z"), now));
        assert!(!is_valid(&lease("2026-01-01T00:00:30.000000Z"), now));
        assert!(!is_valid(&lease("yesterday"), now));
        assert!(!is_valid(&json!({"leaseDurationSeconds": 30}), now));
        assert!(is_valid(
            &json!({"acquireTime": "2026-01-01T00:00:59Z", "leaseDurationSeconds": 30}),
            now
        ));
    }

    #[test]
    fn labels() {
        let options = LeaseOptions::new("kube-system", "k8s-app=konnectivity-server,a=b").unwrap();
        assert_eq!(options.selector, "k8s-app=konnectivity-server,a=b");
        assert_eq!(
            utf8_percent_encode("a in (b, c)", ESCAPED).to_string(),
            "a%20in%20%28b%2C%20c%29"
        );
        assert!(LeaseOptions::new("n", "nonsense").is_err());
        assert!(LeaseOptions::new("n", "").is_err());
    }
}
