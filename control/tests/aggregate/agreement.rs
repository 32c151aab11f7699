//! The same is enforced with the aggregate as without it, after any history.

use control::Kind;
use control::api_server::AggregateRole;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;
use testkit::api_server::ApiServer;
use tokio::time::{Instant, timeout};

use super::{PATIENCE, Switch, TIMING, pod, role, until};
use crate::common::generate::{Edit, NODES, edits};
use crate::common::same_answers;

/// However a cluster came about, a switch enforces the same with the aggregate as with a watch of all pods.
#[test]
fn the_same_is_enforced_with_and_without_the_aggregate() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let check = |edits: Vec<Edit>| {
        runtime.block_on(async {
            let server = ApiServer::new();
            let mut writer = Switch::start(&server, "writer").await;
            until(&mut [&mut writer], "a writer", |all| role(all[0]) == AggregateRole::Writing).await;
            let mut standby = Switch::start(&server, "standby").await;
            until(&mut [&mut writer, &mut standby], "a standby", |all| {
                role(all[1]) == AggregateRole::Standby && !all[1].aggregate.standby.is_empty()
            })
            .await;
            let mut with = Switch::start(&server, NODES[0]).await;
            let mut without = Switch::begin(&server, NODES[0], None).await;
            until(&mut [&mut writer, &mut standby, &mut with, &mut without], "a reader", |all| {
                role(all[2]) == AggregateRole::Reading
            })
            .await;
            for (n, edit) in edits.iter().enumerate() {
                match edit {
                    Edit::Apply(object) => server.apply(object.clone()),
                    Edit::Delete(kind, namespace, name) => {
                        let kind = Kind::ALL.into_iter().find(|it| it.name() == *kind).unwrap();
                        let namespace = Some(*namespace).filter(|_| kind.is_namespaced());
                        server.delete(kind.plural(), namespace, name);
                    }
                }
                if n % 5 == 4 {
                    let _ = timeout(TIMING.flush, std::future::pending::<()>()).await;
                }
            }
            // What came before these is there when they are.
            server.apply(pod("last", "elsewhere", "10.9.9.9"));
            let last = |kind: &str, name: &str| {
                json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})
            };
            server.apply(last("Namespace", "last"));
            until(&mut [&mut writer, &mut standby, &mut with, &mut without], "the same", |all| {
                let sizes = [2, 3].map(|n| all[n].control.counts());
                let same = |kind: Kind| sizes[0].get(&kind) == sizes[1].get(&kind);
                let has_last = |n: usize| all[n].pods().iter().any(|it| it.starts_with("x/last@"));
                let others = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Pod);
                has_last(2) && has_last(3) && others.into_iter().all(same)
            })
            .await;
            // The watches of other kinds are not in step with that of pods.
            let end = Instant::now() + PATIENCE;
            loop {
                for switch in [&mut with, &mut without] {
                    switch.control.commit();
                }
                if same_answers(&with.control.view(), &without.control.view()) {
                    break;
                }
                assert!(Instant::now() < end, "{edits:#?}");
                let next = Instant::now() + TIMING.flush;
                until(&mut [&mut writer, &mut standby, &mut with, &mut without], "the rest", |_| {
                    Instant::now() > next
                })
                .await;
            }
            assert_eq!(role(&with), AggregateRole::Reading);
        });
    };
    let mut runner = TestRunner::new(Config { cases: 8, max_shrink_iters: 8, ..Config::default() });
    let run = |edits: Vec<Edit>| -> Result<(), TestCaseError> {
        check(edits);
        Ok(())
    };
    runner.run(&edits(1..40), run).unwrap();
}
