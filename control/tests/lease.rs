//! The election of the writer of statuses, against the API server double.

use std::time::Duration;

use control::api_server::{Access, Election, Failure, connect};
use testkit::api_server::ApiServer;

/// Long enough for a busy machine.
const DURATION: Duration = Duration::from_secs(600);

/// Advances the candidates' clock without waiting.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn one_candidate_is_elected_and_another_one_after_its_end() {
    let server = ApiServer::new();
    let client = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap().client;
    let mut first = Election::new(client.clone(), "node-a", DURATION);
    let mut second = Election::new(client, "node-b", DURATION);
    assert!(first.is_elected().await.unwrap());
    for _ in 0..8 {
        assert!(!second.is_elected().await.unwrap(), "the lease is renewed");
        pass(DURATION / 4).await;
        first.renew().await.unwrap();
    }
    // The first one ends: nobody renews.
    let mut quarters = 0;
    while !second.is_elected().await.unwrap() {
        pass(DURATION / 4).await;
        quarters += 1;
        assert!(quarters <= 8, "the lease expires");
    }
    assert!(quarters >= 4, "not before its end, {quarters} quarters");
    assert!(!first.is_elected().await.unwrap(), "it lost the lease");
    let lease = server.object("leases", Some("kube-system"), "podgate-status").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "node-b");
    assert_eq!(lease["spec"]["leaseTransitions"], 1);
}

/// The version that a candidate read may be out of date when it writes.
#[tokio::test]
async fn of_candidates_at_the_same_time_one_is_elected() {
    let server = ApiServer::new();
    let client = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap().client;
    let candidate = |n: usize| Election::new(client.clone(), &format!("node-{n}"), DURATION);
    let mut candidates: Vec<Election> = (0..8).map(candidate).collect();
    let elections = candidates.iter_mut().map(|it| it.is_elected());
    let elected = futures_util::future::join_all(elections).await;
    let count = elected.into_iter().filter(|it| *it == Ok(true)).count();
    assert_eq!(count, 1);
}

#[tokio::test]
async fn without_an_answer_no_candidate_is_elected() {
    let server = ApiServer::new();
    server.forbid("leases", true);
    let client = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap().client;
    let mut candidate = Election::new(client, "node-a", DURATION);
    let error = candidate.is_elected().await.unwrap_err();
    assert!(matches!(error.cause, Failure::Refused { code: 403, .. }), "{error}");
    assert!(error.to_string().contains("kube-system/leases/podgate-status"), "{error}");
}
