//! TokenReview (authentication.k8s.io/v1).

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use super::call::{RequestError, call};

/// The result of a TokenReview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenReview {
    /// The token is valid; `status.user`.
    Valid(Value),
    /// The token is invalid or for another audience; the reason, if the API server gives one.
    Invalid(Option<String>),
}

/// Reviews a token, which must be for `audience`; without one for the API server itself.
///
/// # Errors
/// Fails if the API server refuses or does not answer.
pub async fn review_token(
    client: &Client,
    token: &str,
    audience: Option<&str>,
    timeout: Duration,
) -> Result<TokenReview, RequestError> {
    let audiences: Vec<&str> = audience.into_iter().collect();
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": audiences},
    });
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let mut answer = call(client, "POST", path, Some(&review), timeout).await?;
    let status = &mut answer["status"];
    let why = status["error"].as_str().filter(|why| !why.is_empty());
    if status["authenticated"] != true || why.is_some() {
        return Ok(TokenReview::Invalid(why.map(str::to_owned)));
    }
    // An API server that knows no audiences returns none: the token may be another one's.
    let is_for = |wanted: &&str| {
        status["audiences"].as_array().is_some_and(|all| all.iter().any(|it| it == wanted))
    };
    if let Some(wanted) = audience.filter(|wanted| !is_for(wanted)) {
        let why = format!("the token is not for audience '{wanted}'");
        return Ok(TokenReview::Invalid(Some(why)));
    }
    Ok(TokenReview::Valid(status["user"].take()))
}
