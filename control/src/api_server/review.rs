//! TokenReview and SubjectAccessReview: authenticates and authorizes clients of a server of ours.
//!
//! <https://kubernetes.io/docs/reference/access-authn-authz/webhook/> describes what other servers of
//! a cluster do. Results are cached for a short time, and few reviews are under way at a time: an
//! unauthenticated client costs the API server a bounded number of requests.

use std::collections::HashMap;

use std::time::{Duration, Instant};

use api_client::{RequestError, TokenReview, call, review_token};
use kube::Client;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Semaphore;

/// The result of a review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Review {
    /// The user with this name may.
    Granted(String),
    /// The token is not valid.
    Unauthenticated(String),
    /// The user may not.
    Denied(String),
    /// The API server does not answer, or refuses reviews.
    Unavailable(String),
}

/// Reviews tokens.
pub struct Reviewer {
    client: Client,
    /// Reviews under way.
    permits: Semaphore,
    known: Mutex<Known>,
}

/// Token, audience and path.
type Question = (String, Option<String>, String);

/// Results, and since when they are known.
type Known = HashMap<Question, (Instant, Review)>;

/// Reviews at a time.
const AT_ONCE: usize = 4;
/// Wait for one of them.
const PATIENCE: Duration = Duration::from_secs(2);
/// Timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a grant counts; a revoked right ends after it.
const GRANTED: Duration = Duration::from_secs(30);
/// Time that a refusal counts.
const REFUSED: Duration = Duration::from_secs(5);
/// Results remembered.
const KNOWN: usize = 512;
/// Longest token, in bytes.
const TOKEN: usize = 16 << 10;

impl Reviewer {
    /// A reviewer; its client needs the rights of the ClusterRole `system:auth-delegator`.
    pub fn new(client: Client) -> Self {
        Self { client, permits: Semaphore::new(AT_ONCE), known: Mutex::default() }
    }

    /// Whether the owner of `token` may `get` the non-resource path `path`. The token must be for
    /// `audience`; without one for the API server itself.
    pub async fn review(&self, token: &str, audience: Option<&str>, path: &str) -> Review {
        if token.len() > TOKEN {
            return Review::Unauthenticated("the token is too long".to_owned());
        }
        let question = (token.to_owned(), audience.map(str::to_owned), path.to_owned());
        if let Some(known) = self.known(&question) {
            return known;
        }
        let Ok(Ok(_permit)) = tokio::time::timeout(PATIENCE, self.permits.acquire()).await else {
            return Review::Unavailable("too many tokens wait for their review".to_owned());
        };
        let review = match self.ask(&question).await {
            Ok(review) => review,
            Err(error) => return Review::Unavailable(error.to_string()),
        };
        let mut known = self.known.lock();
        make_room(&mut known);
        known.insert(question, (Instant::now(), review.clone()));
        review
    }

    fn known(&self, question: &Question) -> Option<Review> {
        let known = self.known.lock();
        let (at, review) = known.get(question)?;
        (at.elapsed() < life(review)).then(|| review.clone())
    }

    async fn ask(&self, (token, audience, path): &Question) -> Result<Review, RequestError> {
        let user = match review_token(&self.client, token, audience.as_deref(), TIMEOUT).await? {
            TokenReview::Valid(user) => user,
            TokenReview::Invalid(why) => {
                let why = why.unwrap_or_else(|| "the token is not valid".to_owned());
                return Ok(Review::Unauthenticated(why));
            }
        };
        let name = user["username"].as_str().unwrap_or_default().to_owned();
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": name,
                "groups": user["groups"],
                "uid": user["uid"],
                "extra": user["extra"],
                "nonResourceAttributes": {"path": path, "verb": "get"},
            },
        });
        let path_of = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = call(&self.client, "POST", path_of, Some(&review), TIMEOUT).await?;
        Ok(match answer["status"]["allowed"] == true && answer["status"]["denied"] != true {
            true => Review::Granted(name),
            false => Review::Denied(format!("user '{}' may not get {path}", name.escape_debug())),
        })
    }
}

/// Makes room for one more result: old ones go first, then refusals, so that a flood of invalid tokens
/// displaces no grant.
fn make_room(known: &mut Known) {
    let keeps: [fn(&Instant, &Review) -> bool; 3] = [
        |at, review| at.elapsed() < life(review),
        |_, review| matches!(review, Review::Granted(_)),
        |_, _| false,
    ];
    for keep in keeps {
        if known.len() >= KNOWN {
            known.retain(|_, (at, review)| keep(at, review));
        }
    }
}

fn life(review: &Review) -> Duration {
    match review {
        Review::Granted(_) => GRANTED,
        _ => REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_tokens_displace_no_grant() {
        let mut known = Known::new();
        let mut add = |token: String, review: Review| {
            make_room(&mut known);
            known.insert((token, None, "/metrics".to_owned()), (Instant::now(), review));
            known.len()
        };
        let granted = || Review::Granted("scraper".to_owned());
        add("scraper".to_owned(), granted());
        for n in 0..3 * KNOWN {
            assert!(add(format!("invalid {n}"), Review::Denied(String::new())) <= KNOWN);
        }
        let most = (0..3 * KNOWN).map(|n| add(format!("valid {n}"), granted())).max();
        assert_eq!(most, Some(KNOWN));
        let mut known = Known::new();
        for n in 0..=KNOWN {
            let review = if n == 0 { granted() } else { Review::Denied(String::new()) };
            make_room(&mut known);
            known.insert((n.to_string(), None, String::new()), (Instant::now(), review));
        }
        let kept: Vec<_> = known.values().filter(|(_, it)| *it == granted()).collect();
        assert_eq!((kept.len(), known.len()), (1, 2));
    }
}
