//! Requests to the API server that are answered by one JSON object.
//!
//! An answer is bounded in time and in length, one that is an error too ([`client`]), and an error names its request.

mod call;
mod error_body;
mod token_review;

pub use call::{Failure, Request, RequestError, brief, call, call_object, send, with_causes};
use kube::client::{Client, ClientBuilder};
pub use token_review::{TokenReview, review_token};
use tower::util::AndThenLayer;

/// A client with this configuration. It repeats no request: each caller does so at a pace of its own, and kube's retries
/// would hide the status from it.
///
/// # Errors
/// Fails if credentials cannot be used; the causes name the file.
pub fn client(mut config: kube::Config) -> kube::Result<Client> {
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&AndThenLayer::new(error_body::bounded)).build())
}
