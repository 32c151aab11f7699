//! The state machine, given what a server says.

use super::*;
use serde_json::json;

fn line(watch: &mut Watch, kind: &str, object: Value) -> Result<Vec<Event>, Trouble> {
    watch.part(json!({"type": kind, "object": object}).to_string().as_bytes())
}

fn namespace(name: &str, version: u32) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": name, "resourceVersion": version.to_string()}})
}

fn bookmark(version: u32, end: bool) -> Value {
    let mut object = json!({"kind": "Namespace", "apiVersion": "v1",
        "metadata": {"resourceVersion": version.to_string()}});
    if end {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    object
}

/// A watch that has listed one namespace `a` at version 5.
fn listed() -> Watch {
    let mut watch = Watch::new(Kind::Namespace);
    assert!(watch.path().contains("sendInitialEvents=true"));
    assert_eq!(line(&mut watch, "ADDED", namespace("a", 3)), Ok(vec![]));
    let events = line(&mut watch, "BOOKMARK", bookmark(5, true)).unwrap();
    assert!(matches!(&events[..], [Event::Resync(Kind::Namespace, all, _)] if all.len() == 1));
    assert!(watch.path().ends_with("resourceVersion=5"));
    watch
}

#[test]
fn a_streaming_list_ends_with_its_bookmark_and_the_watch_goes_on_from_there() {
    let mut watch = listed();
    let events = line(&mut watch, "MODIFIED", namespace("b", 7)).unwrap();
    assert!(matches!(events[..], [Event::Apply(..)]));
    assert!(watch.path().ends_with("resourceVersion=7"));
    assert_eq!(line(&mut watch, "BOOKMARK", bookmark(9, false)), Ok(vec![]));
    assert!(watch.path().ends_with("resourceVersion=9"));
    assert!(matches!(
        line(&mut watch, "DELETED", namespace("b", 10)).unwrap()[..],
        [Event::Delete(_)]
    ));
    assert_eq!((watch.end(), watch.next_after(None)), (Ok(vec![]), Next::AtOnce));
}

#[test]
fn a_bookmark_is_never_taken_for_a_policy_that_selects_everything() {
    let mut watch = Watch::new(Kind::NetworkPolicy);
    let empty = json!({"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"resourceVersion": "4"}, "spec": {"podSelector": {}}});
    assert_eq!(line(&mut watch, "BOOKMARK", empty.clone()), Ok(vec![]));
    let mut end = empty;
    end["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    let events = line(&mut watch, "BOOKMARK", end).unwrap();
    assert_eq!(events, [Event::Resync(Kind::NetworkPolicy, vec![], vec![])]);
}

#[test]
fn an_expired_version_lists_anew_whether_by_status_or_by_event() {
    let mut watch = listed();
    let expired = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "old"});
    let trouble = line(&mut watch, "ERROR", expired).unwrap_err();
    assert_eq!(trouble, Trouble::Expired);
    assert_eq!(watch.next_after(Some(&trouble)), Next::AtOnce);
    assert!(watch.path().contains("sendInitialEvents=true"));
    assert_eq!(Trouble::status(410, "", 0), Trouble::Expired);
}

#[test]
fn a_version_that_is_too_large_is_waited_for() {
    let mut watch = listed();
    let trouble = Trouble::status(504, "Too large resource version", 1);
    assert_eq!(watch.next_after(Some(&trouble)), Next::After(Duration::from_secs(1)));
    assert!(watch.path().ends_with("resourceVersion=5"), "the watch goes on where it was");
}

#[test]
fn a_list_that_breaks_off_reports_nothing_and_begins_anew() {
    let mut watch = Watch::new(Kind::Namespace);
    line(&mut watch, "ADDED", namespace("a", 3)).unwrap();
    assert!(!watch.take_fruit(), "half a list is no progress");
    let trouble = watch.end().unwrap_err();
    assert_eq!(watch.next_after(Some(&trouble)), Next::AtOnce);
    assert!(watch.path().ends_with("/namespaces?limit=500"), "by pages");
    let refused = Trouble::status(500, "", 0);
    assert_eq!(watch.next_after(Some(&refused)), Next::BackOff);
    watch.part(br#"{"metadata": {"resourceVersion": "5"}, "items": []}"#).unwrap();
    let events = watch.end().unwrap();
    assert_eq!(events, [Event::Resync(Kind::Namespace, vec![], vec![])]);
    assert_eq!(watch.next_after(Some(&Trouble::Expired)), Next::AtOnce);
    assert!(watch.path().contains("sendInitialEvents=true"), "the next list streams again");
}

#[test]
fn an_older_server_is_listed_by_pages_and_an_expired_page_asks_for_all() {
    let mut watch = Watch::new(Kind::Namespace);
    let refused = Trouble::status(422, "sendInitialEvents: Forbidden: not enabled", 0);
    assert_eq!(watch.next_after(Some(&refused)), Next::AtOnce);
    assert!(watch.path().ends_with("/namespaces?limit=500"));
    let page = |rest: &str, name: &str| {
        json!({"kind": "NamespaceList", "metadata": {"resourceVersion": "8", "continue": rest},
            "items": [{"metadata": {"name": name}}]})
        .to_string()
    };
    watch.part(page("a/b", "a").as_bytes()).unwrap();
    assert_eq!(watch.end(), Ok(vec![]));
    assert!(watch.path().ends_with("limit=500&continue=a%2Fb"));
    assert_eq!(watch.next_after(Some(&Trouble::Expired)), Next::AtOnce);
    assert!(watch.path().ends_with("/namespaces?"));
    watch.part(page("", "b").as_bytes()).unwrap();
    let events = watch.end().unwrap();
    assert!(matches!(&events[..], [Event::Resync(_, all, _)] if all.len() == 1));
    assert!(watch.path().ends_with("resourceVersion=8"));
}

#[test]
fn only_a_kind_with_a_definition_may_be_absent() {
    let mut watch = Watch::new(Kind::ClusterNetworkPolicy);
    assert_eq!(watch.next_after(Some(&Trouble::Absent)), Next::WhenInstalled);
    assert!(watch.path().contains("sendInitialEvents=true"));
    let mut core = Watch::new(Kind::Pod);
    assert_eq!(core.next_after(Some(&Trouble::Absent)), Next::BackOff);
}

#[test]
fn an_event_that_cannot_be_decoded_is_listed_and_a_field_that_cannot_be_is_a_fault() {
    for bad in ["{", "[]", "{\"type\":\"WHAT\"}", "{\"type\":\"ADDED\"}"] {
        let mut watch = listed();
        let trouble = watch.part(bad.as_bytes()).unwrap_err();
        assert!(matches!(trouble, Trouble::Undecodable(_)), "{bad}: {trouble:?}");
        assert_eq!(watch.next_after(Some(&trouble)), Next::AtOnce);
        assert!(watch.path().contains("sendInitialEvents=true"));
    }
    let mut watch = listed();
    let bad = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "c", "resourceVersion": "11", "labels": {"a": 1}}});
    let events = line(&mut watch, "ADDED", bad).unwrap();
    let [Event::Apply(Object::Namespace(namespace), faults)] = &events[..] else { panic!() };
    assert!(!namespace.complete);
    assert_eq!(faults[0].field, "metadata.labels.a");
    let evil = json!({"metadata": {"resourceVersion": "1&watch=0"}});
    assert_eq!(line(&mut watch, "BOOKMARK", evil), Ok(vec![]));
    assert!(watch.path().ends_with("resourceVersion=11"));
}

#[test]
fn every_request_leaves_out_what_decides_nothing() {
    for (kind, selector) in [
        (Kind::Pod, "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"),
        (Kind::EndpointSlice, "labelSelector=%21service.kubernetes.io%2Fheadless"),
        (Kind::Service, "%21service.kubernetes.io%2Fservice-proxy-name"),
    ] {
        let mut watch = Watch::new(kind);
        assert!(watch.path().contains(selector), "{}", watch.path());
        let mut end = bookmark(5, true);
        end["kind"] = kind.name().into();
        line(&mut watch, "BOOKMARK", end).unwrap();
        assert!(watch.path().contains(selector) && watch.path().ends_with("resourceVersion=5"));
        let mut watch = Watch::new(kind);
        watch.next_after(Some(&Trouble::status(422, "sendInitialEvents: Forbidden", 0)));
        assert!(watch.path().contains(selector) && watch.path().ends_with("&limit=500"));
    }
    // A denial is never left out.
    for kind in Kind::ALL.into_iter().filter(|kind| kind.closes()) {
        assert!(!Watch::new(kind).path().contains("elector"), "{kind:?}");
    }
}
