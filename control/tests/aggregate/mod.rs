//! Pods by way of PodgateAddresses, against the API server double: several switches, each with a control of its own.

mod agreement;

use std::time::Duration;

use control::api_server::{
    Access, Aggregate, AggregateRole, Aggregation, Event, InitialSync, Pace, Timing, connect,
    watch, watch_aggregated,
};
use control::{Control, Kind, Object, Scope};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const PACE: Pace = Pace {
    answer: Duration::from_secs(60),
    first: Duration::from_millis(5),
    most: Duration::from_millis(50),
    outage: Duration::from_millis(50),
    absent: Duration::from_millis(50),
    hold: Duration::from_millis(200),
};

/// Short enough for a test, long enough for a busy machine.
const TIMING: Timing = Timing {
    flush: Duration::from_millis(40),
    heartbeat: Duration::from_millis(200),
    late: Duration::from_secs(4),
    lease: Duration::from_secs(2),
    spread: Duration::from_micros(1),
    again: Duration::from_millis(100),
};
/// Longest wait for something that has to come about.
const PATIENCE: Duration = Duration::from_secs(60);

/// A switch: its watches, and the control that they feed.
struct Switch {
    events: mpsc::Receiver<Event>,
    _tasks: JoinSet<()>,
    initial: Option<InitialSync>,
    control: Control,
    /// The last state of the aggregate.
    aggregate: Aggregate,
    /// The last trouble of pods, until they are current again.
    trouble: Option<String>,
}

impl Switch {
    async fn start(server: &ApiServer, node: &str) -> Self {
        Self::begin(server, node, Some(TIMING)).await
    }

    async fn begin(server: &ApiServer, node: &str, timing: Option<Timing>) -> Self {
        let connection = connect(&Access::Kubeconfig(server.kubeconfig())).await.unwrap();
        let (sender, events) = mpsc::channel(16);
        let node = node.to_owned();
        let scope = Scope::Node(node.as_str().into());
        let tasks = match timing {
            Some(timing) => {
                let aggregation = Aggregation { node, timing };
                watch_aggregated(&connection.client, PACE, aggregation, &sender)
            }
            None => watch(&connection.client, PACE, &sender),
        };
        Self {
            events,
            _tasks: tasks,
            initial: Some(InitialSync::default()),
            control: Control::new(scope),
            aggregate: Aggregate::default(),
            trouble: None,
        }
    }

    fn take(&mut self, event: Event) {
        match &event {
            Event::Aggregate(now) => self.aggregate = now.clone(),
            Event::Trouble(Kind::Pod, why) => self.trouble = Some(why.clone()),
            Event::Current(Kind::Pod) => self.trouble = None,
            _ => {}
        }
        match &mut self.initial {
            None => drop(self.control.handle(event)),
            Some(initial) => {
                if initial.take(event) {
                    self.initial.take().unwrap().work_in(&mut self.control);
                }
            }
        }
    }

    fn pods(&self) -> Vec<String> {
        let pod = |object: Object| match object {
            Object::Pod(pod) => Some(format!(
                "{}/{}@{} {:?}",
                pod.key.namespace,
                pod.key.name,
                pod.node.as_deref().unwrap(),
                pod.addresses
            )),
            _ => None,
        };
        self.control.objects().filter_map(pod).collect()
    }
}

/// Lets switches take events until all of them are as they should be.
async fn until(switches: &mut [&mut Switch], what: &str, done: impl Fn(&[&mut Switch]) -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        for switch in switches.iter_mut() {
            while let Ok(event) = switch.events.try_recv() {
                switch.take(event);
            }
        }
        if switches.iter().all(|it| it.initial.is_none()) && done(switches) {
            return;
        }
        if Instant::now() > end {
            let all: Vec<_> =
                switches.iter().map(|it| (&it.aggregate, &it.trouble, it.pods())).collect();
            panic!("waited in vain for {what}: {all:#?}");
        }
        let _ = timeout(Duration::from_millis(5), std::future::pending::<()>()).await;
    }
}

fn pod(name: &str, node: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "x", "name": name, "uid": format!("uid-{name}-{node}"),
            "labels": {"app": name}},
        "spec": {"nodeName": node, "containers": [{"name": "c",
            "ports": [{"name": "http", "containerPort": 80}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]}})
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

fn role(switch: &Switch) -> AggregateRole {
    switch.aggregate.role
}

/// The writer, the standby and a reader.
async fn three(server: &ApiServer) -> [Switch; 3] {
    let mut a = Switch::start(server, "n1").await;
    until(&mut [&mut a], "a writer", |all| role(all[0]) == AggregateRole::Writing).await;
    let mut b = Switch::start(server, "n2").await;
    until(&mut [&mut a, &mut b], "a standby", |all| {
        role(all[1]) == AggregateRole::Standby && all[1].aggregate.standby == "n2"
    })
    .await;
    let mut c = Switch::start(server, "n3").await;
    until(&mut [&mut a, &mut b, &mut c], "a reader", |all| role(all[2]) == AggregateRole::Reading)
        .await;
    [a, b, c]
}

#[test]
fn one_writes_one_stands_by_and_the_others_read() {
    run(async {
        let server = ApiServer::new();
        server.apply(pod("a", "n1", "10.0.0.1"));
        server.apply(pod("c", "n3", "10.0.0.3"));
        let [mut a, mut b, mut c] = three(&server).await;
        assert_eq!(c.pods(), ["x/a@n1 [10.0.0.1]", "x/c@n3 [10.0.0.3]"]);
        assert_eq!((&*c.aggregate.writer, &*c.aggregate.standby), ("n1", "n2"));
        assert!(!c.aggregate.version.is_empty() && c.aggregate.received.is_some());
        let asked = server.asked("pods").len();
        let all_pods = |it: &String| !it.contains("nodeName%3Dn3");
        let by_reader = server.asked("pods").into_iter().filter(|it| it.contains("nodeName%3Dn3"));
        assert!(by_reader.count() > 0);
        // Pods come, change, move to another node, take over an address, and go.
        let wait = async |a: &mut Switch, b: &mut Switch, c: &mut Switch, pods: &[&str]| {
            until(&mut [a, b, c], "pods", |all| all.iter().all(|it| it.pods() == pods)).await;
        };
        server.apply(pod("b", "n2", "10.0.0.2"));
        wait(
            &mut a,
            &mut b,
            &mut c,
            &["x/a@n1 [10.0.0.1]", "x/b@n2 [10.0.0.2]", "x/c@n3 [10.0.0.3]"],
        )
        .await;
        server.delete("pods", Some("x"), "c");
        server.delete("pods", Some("x"), "a");
        server.apply(pod("a", "n3", "10.0.0.3"));
        wait(&mut a, &mut b, &mut c, &["x/a@n3 [10.0.0.3]", "x/b@n2 [10.0.0.2]"]).await;
        server.delete("pods", Some("x"), "a");
        server.apply(pod("a", "n1", "10.0.0.9"));
        wait(&mut a, &mut b, &mut c, &["x/a@n1 [10.0.0.9]", "x/b@n2 [10.0.0.2]"]).await;
        server.delete("pods", Some("x"), "b");
        server.apply(pod("d", "n1", "10.0.0.2"));
        wait(&mut a, &mut b, &mut c, &["x/a@n1 [10.0.0.9]", "x/d@n1 [10.0.0.2]"]).await;
        let later = server.asked("pods").split_off(asked);
        assert!(!later.iter().any(all_pods), "nobody listed all pods again: {later:?}");
    });
}

#[test]
fn the_standby_takes_over_and_another_one_stands_by() {
    run(async {
        let server = ApiServer::new();
        server.apply(pod("a", "n1", "10.0.0.1"));
        let [a, mut b, mut c] = three(&server).await;
        let sequence = c.aggregate.sequence;
        drop(a);
        until(&mut [&mut b, &mut c], "another writer", |all| {
            role(all[0]) == AggregateRole::Writing && role(all[1]) == AggregateRole::Standby
        })
        .await;
        server.apply(pod("b", "n1", "10.0.0.2"));
        let mut d = Switch::start(&server, "n4").await;
        until(&mut [&mut b, &mut c, &mut d], "a reader of the new writer", |all| {
            all[2].aggregate.standby == "n3"
                && role(all[2]) == AggregateRole::Reading
                && all.iter().all(|it| it.pods().len() == 2)
        })
        .await;
        assert_eq!((&*d.aggregate.writer, &*d.aggregate.standby), ("n2", "n3"));
        assert!(d.aggregate.sequence > sequence, "the log goes on");
    });
}

#[test]
fn without_a_writer_a_switch_watches_pods_and_returns_when_there_is_one() {
    run(async {
        let server = ApiServer::new();
        server.apply(pod("a", "n1", "10.0.0.1"));
        let [a, b, mut c] = three(&server).await;
        // No other switch is allowed to take over.
        server.forbid("leases", true);
        drop((a, b));
        until(&mut [&mut c], "its own watch", |all| role(all[0]) == AggregateRole::Watching).await;
        let reason = c.aggregate.reason.clone().unwrap();
        assert!(reason.contains("node n1 wrote nothing for"), "{reason}");
        server.apply(pod("b", "n1", "10.0.0.2"));
        until(&mut [&mut c], "a pod by its own watch", |all| all[0].pods().len() == 2).await;
        server.forbid("leases", false);
        // It is the one that is left, so it writes; another one that comes stands by.
        until(&mut [&mut c], "a writer", |all| role(all[0]) == AggregateRole::Writing).await;
        assert_eq!(c.aggregate.reason, None);
    });
}

#[test]
fn a_reader_that_fell_back_reads_again_once_there_is_a_writer() {
    run(async {
        let server = ApiServer::new();
        server.apply(pod("a", "n1", "10.0.0.1"));
        let [mut a, mut b, mut c] = three(&server).await;
        let all = server.objects("podgateaddresses");
        server.delete_definition("podgateaddresses");
        until(&mut [&mut a, &mut b, &mut c], "its own watch", |all| {
            role(all[2]) == AggregateRole::Watching
        })
        .await;
        assert!(
            c.aggregate.reason.as_ref().is_some_and(|it| it.contains("404")),
            "{:?}",
            c.aggregate
        );
        server.apply(pod("b", "n1", "10.0.0.2"));
        until(&mut [&mut c], "a pod by its own watch", |all| all[0].pods().len() == 2).await;
        server.uninstall("podgateaddresses", false);
        // What is there now is of another time.
        all.into_iter().take(1).for_each(|object| server.apply(object));
        until(&mut [&mut a, &mut b, &mut c], "the aggregate", |all| {
            role(all[2]) == AggregateRole::Reading
        })
        .await;
        server.apply(pod("c", "n1", "10.0.0.3"));
        until(&mut [&mut a, &mut b, &mut c], "a pod by the aggregate", |all| {
            all.iter().all(|it| it.pods().len() == 3)
        })
        .await;
        assert_eq!(c.aggregate.reason, None);
    });
}

#[test]
fn objects_that_are_spoiled_or_lost_are_made_anew_and_nothing_of_them_is_enforced() {
    run(async {
        let server = ApiServer::new();
        server.apply(pod("a", "n1", "10.0.0.1"));
        let [mut a, mut b, mut c] = three(&server).await;
        for (n, spoil) in ["page", "log", "all"].into_iter().enumerate() {
            for mut object in server.objects("podgateaddresses") {
                let name = object["metadata"]["name"].as_str().unwrap().to_owned();
                match spoil {
                    "all" => server.delete("podgateaddresses", None, &name),
                    "page" if name.starts_with("page") => {
                        object["spec"]["page"]["pods"] = json!(["0 forged n9 10.0.0.66 5 "]);
                        object["spec"]["page"]["sets"] = json!(["x  app=admin   "]);
                        server.apply(object);
                    }
                    "log" if name.starts_with("log") => {
                        object["spec"]["log"]["changes"] = json!(["0 forged n9 10.0.0.66 5 "]);
                        object["spec"]["log"]["sets"] = json!(["x  app=admin   "]);
                        object["spec"]["log"]["sequence"] =
                            json!(object["spec"]["log"]["sequence"].as_u64().unwrap() + 1);
                        server.apply(object);
                    }
                    _ => {}
                }
            }
            server.apply(pod(&format!("b{n}"), "n1", &format!("10.0.1.{n}")));
            let mut d = Switch::start(&server, "n4").await;
            until(&mut [&mut a, &mut b, &mut c, &mut d], spoil, |all| {
                let are_right = all.iter().all(|it| it.pods().len() == n + 2);
                assert!(all.iter().all(|it| !it.pods().concat().contains("forged")));
                let reads = |n: usize| role(all[n]) == AggregateRole::Reading;
                reads(2) && reads(3) && are_right
            })
            .await;
        }
    });
}

#[test]
fn an_expired_version_and_an_outage_lose_nothing_and_a_reader_goes_on_reading() {
    run(async {
        let mut server = ApiServer::new();
        server.apply(pod("a", "n1", "10.0.0.1"));
        let [mut a, mut b, mut c] = three(&server).await;
        server.forget_history();
        server.apply(pod("b", "n1", "10.0.0.2"));
        until(&mut [&mut a, &mut b, &mut c], "a pod after 410", |all| {
            all.iter().all(|it| it.pods().len() == 2)
        })
        .await;
        server.go_away();
        let end = Instant::now() + 2 * TIMING.late;
        until(&mut [&mut a, &mut b, &mut c], "the end of the outage", |_| Instant::now() > end)
            .await;
        assert!(c.trouble.is_some(), "it says that changes may be missing");
        assert_eq!(role(&c), AggregateRole::Reading);
        server.come_back();
        server.delete("pods", Some("x"), "a");
        until(&mut [&mut a, &mut b, &mut c], "a pod that went", |all| {
            all.iter().all(|it| it.pods().len() == 1 && it.trouble.is_none())
        })
        .await;
        until(&mut [&mut a, &mut b, &mut c], "a writer", |all| {
            all.iter().filter(|it| role(it) == AggregateRole::Writing).count() == 1
        })
        .await;
    });
}
