//! The text form, over generated rules and over any text at all.

#[allow(dead_code, reason = "only rules are drawn here")]
mod common;

use acl::{Rule, parse_class_bench, parse_rules};
use ipnet::IpNet;
use proptest::prelude::*;

/// The rule with host bits dropped, as it prints.
fn canonical(rule: &Rule) -> Rule {
    let end = |end| match end {
        acl::End::Net(net) => acl::End::Net(IpNet::trunc(&net)),
        other => other,
    };
    Rule { source: end(rule.source), destination: end(rule.destination), ..rule.clone() }
}

proptest! {
    #[test]
    fn printed_rules_read_back(rule in common::rule(), origin in "\\PC*|[\"\\\\\n\r a]*") {
        let rule = canonical(&Rule { origin: origin.into(), ..rule });
        prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
    }

    #[test]
    fn any_text_is_read_or_refused(
        text in "(permit|deny|from|to|any|set|port|by|tcp|icmp|@|[0-9./:-]{1,9}|\"|\\\\|\\PC| |\n){0,30}"
    ) {
        if let Ok(rules) = parse_rules(&text) {
            let printed: String = rules.iter().map(|rule| format!("{rule}\n")).collect();
            prop_assert_eq!(parse_rules(&printed), Ok(rules));
        }
        if let Err(error) = parse_class_bench(&text) {
            prop_assert!(error.line <= text.lines().count() && error.column > 0);
        }
    }
}
