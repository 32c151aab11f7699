//! The text form, over generated rules and over any text at all.

#[allow(dead_code, reason = "only rules are drawn here")]
mod common;

use acl::{Rule, parse_rules};
use proptest::prelude::*;

proptest! {
    #[test]
    fn printed_rules_read_back(rule in common::rule(), origin in "\\PC*|[\"\\\\\n\r a]*") {
        let rule = Rule { origin: origin.as_str().into(), ..rule };
        prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
    }

    #[test]
    fn any_text_is_read_or_refused(
        text in "(permit|deny|from|to|any|set|port|by|tcp|icmp|[0-9-]{1,9}|\"|\\\\|\\PC| |\n){0,30}"
    ) {
        if let Ok(rules) = parse_rules(&text) {
            let printed: String = rules.iter().map(|rule| format!("{rule}\n")).collect();
            prop_assert_eq!(parse_rules(&printed), Ok(rules));
        }
    }
}
