//! Tokens, their users, and what these may read: TokenReview, SubjectAccessReview, TokenRequest.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// The audience of tokens for the API server itself.
const API: &str = "https://kubernetes.default.svc";

/// All users.
#[derive(Default)]
pub(super) struct Identities {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// User and audience by token.
    tokens: HashMap<String, (String, String)>,
    /// Users and the non-resource paths that they may get.
    grants: HashSet<(String, String)>,
    /// Reviews so far: of tokens, of access.
    reviews: (usize, usize),
}

impl Identities {
    pub(super) fn add(&self, token: &str, user: &str) {
        self.insert(token, user, API);
    }

    pub(super) fn grant(&self, user: &str, path: &str) {
        self.lock().grants.insert((user.to_owned(), path.to_owned()));
    }

    pub(super) fn reviews(&self) -> (usize, usize) {
        self.lock().reviews
    }

    /// The answer to a request about identities; `None` if the path is about something else.
    pub(super) fn answer(&self, method: &str, path: &str, body: &Value) -> Option<Value> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match (method, &parts[..]) {
            ("POST", ["apis", "authentication.k8s.io", "v1", "tokenreviews"]) => {
                Some(self.review_token(&body["spec"]))
            }
            ("POST", ["apis", "authorization.k8s.io", "v1", "subjectaccessreviews"]) => {
                Some(self.review_access(&body["spec"]))
            }
            ("POST", ["api", "v1", "namespaces", namespace, "serviceaccounts", name, "token"]) => {
                let audience = body["spec"]["audiences"][0].as_str().unwrap_or(API);
                let user = format!("system:serviceaccount:{namespace}:{name}");
                let token = format!("token-of-{user}-for-{audience}");
                self.insert(&token, &user, audience);
                Some(json!({"kind": "TokenRequest", "status": {"token": token}}))
            }
            _ => None,
        }
    }

    pub(super) fn insert(&self, token: &str, user: &str, audience: &str) {
        let value = (user.to_owned(), audience.to_owned());
        self.lock().tokens.insert(token.to_owned(), value);
    }

    fn review_token(&self, spec: &Value) -> Value {
        let mut state = self.lock();
        state.reviews.0 += 1;
        let wanted = spec["audiences"].as_array().filter(|all| !all.is_empty());
        let is_wanted = |audience: &str| match wanted {
            Some(all) => all.iter().any(|it| it == audience),
            None => audience == API,
        };
        let known = spec["token"].as_str().and_then(|token| state.tokens.get(token));
        match known.filter(|(_, audience)| is_wanted(audience)) {
            Some((user, audience)) => json!({"status": {"authenticated": true,
                "user": {"username": user, "groups": ["system:authenticated"]},
                "audiences": [audience]}}),
            None => json!({"status": {"authenticated": false, "error": "invalid bearer token"}}),
        }
    }

    fn review_access(&self, spec: &Value) -> Value {
        let mut state = self.lock();
        state.reviews.1 += 1;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let asked = &spec["nonResourceAttributes"];
        let grant = (text(&spec["user"]), text(&asked["path"]));
        let is_allowed = asked["verb"] == "get" && state.grants.contains(&grant);
        json!({"status": {"allowed": is_allowed}})
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
