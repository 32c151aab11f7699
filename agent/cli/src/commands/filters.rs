//! Filters of verdicts, as `podgate observe` and `kubectl podgate observe` have them.

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches, ValueEnum};
use local_api::{AnyOf, ObserveFilters, Ports, Verdict};

/// Declares options, each with its values' type, their name and its help, which are filters of the same name.
macro_rules! filters {
    ($($field:ident: $type:ident, $value:literal, $help:literal;)*) => {
        /// Filters of verdicts, without their namespace. Each may be repeated: one of its values has to match.
        #[derive(Debug, Default, clap::Args)]
        struct Given {
            /// Only this verdict
            #[arg(long, value_enum, ignore_case = true)]
            verdict: Vec<VerdictArg>,

            $(
                #[arg(long, value_name = $value, help = $help)]
                $field: Vec<$type>,
            )*

            /// Only connections towards a pod of the node (ingress) or from one (egress)
            #[arg(long, value_name = "DIRECTION")]
            traffic_direction: Vec<String>,

            /// Invert the filters that follow
            #[arg(long)]
            not: bool,
        }

        impl Given {
            /// Moves the values out that stand behind `at` on the command line.
            fn split_off(&mut self, at: Index<'_>) -> Self {
                Self {
                    verdict: at.split_off("verdict", &mut self.verdict),
                    $($field: at.split_off(stringify!($field), &mut self.$field),)*
                    traffic_direction: at.split_off("traffic_direction", &mut self.traffic_direction),
                    not: false,
                }
            }

            /// The filters as the switch takes them.
            fn wanted(self) -> ObserveFilters {
                let verdict = self.verdict.into_iter().map(|verdict| match verdict {
                    VerdictArg::Forwarded => Verdict::Forwarded,
                    VerdictArg::Dropped => Verdict::Dropped,
                });
                ObserveFilters {
                    verdict: AnyOf(verdict.collect()),
                    direction: AnyOf(self.traffic_direction),
                    $($field: AnyOf(self.$field),)*
                    ..ObserveFilters::default()
                }
            }
        }
    };
}

/// A place on the command line.
#[derive(Clone, Copy)]
struct Index<'a> {
    matches: &'a ArgMatches,
    at: usize,
}

impl Index<'_> {
    /// Moves the values of an option out that stand behind.
    fn split_off<T>(self, option: &str, values: &mut Vec<T>) -> Vec<T> {
        let before = self.matches.indices_of(option).into_iter().flatten();
        let before = before.take_while(|index| *index < self.at).count();
        values.split_off(before.min(values.len()))
    }
}

/// Filters of verdicts, and those behind `--not`.
#[derive(Debug)]
pub(crate) struct Filters {
    wanted: ObserveFilters,
    except: Option<ObserveFilters>,
    /// Namespaces that stand before `--not`, of an option `--namespace` that may be repeated.
    namespaces_before: usize,
}

impl Filters {
    /// The filters as the switch takes them, with the namespaces that were named beside them.
    pub(crate) fn wanted(&self, namespaces: &[String]) -> ObserveFilters {
        let (before, behind) = namespaces.split_at(self.namespaces_before.min(namespaces.len()));
        let except = self.except.as_ref().map(|except| {
            let namespace = AnyOf(behind.to_vec());
            Box::new(ObserveFilters { namespace, ..except.clone() })
        });
        ObserveFilters { namespace: AnyOf(before.to_vec()), except, ..self.wanted.clone() }
    }
}

impl clap::Args for Filters {
    fn augment_args(command: Command) -> Command {
        Given::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args_for_update(command)
    }
}

impl FromArgMatches for Filters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Given::from_arg_matches(matches)?;
        if !given.not {
            let (wanted, except) = (given.wanted(), None);
            return Ok(Self { wanted, except, namespaces_before: usize::MAX });
        }
        let at = matches.index_of("not").unwrap_or_default();
        let namespaces = matches.try_get_raw("namespace").ok().flatten().into_iter().flatten();
        let mut namespaces: Vec<_> = namespaces.collect();
        let index = Index { matches, at };
        let behind = index.split_off("namespace", &mut namespaces);
        let except = given.split_off(index).wanted();
        if except == ObserveFilters::default() && behind.is_empty() {
            let text = "--not: no filter follows it\n";
            return Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, text));
        }
        let (wanted, except) = (given.wanted(), Some(except));
        Ok(Self { wanted, except, namespaces_before: namespaces.len() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

filters! {
    pod: String, "[NS/]POD", "Only packets that this pod sent, or that are for it";
    from_pod: String, "[NS/]POD", "Only packets that this pod sent";
    to_pod: String, "[NS/]POD", "Only packets for this pod";
    from_namespace: String, "NS", "Only packets from pods in this namespace";
    to_namespace: String, "NS", "Only packets to pods in this namespace";
    label: String, "SELECTOR", "Only packets from or to pods with these labels, such as app=db,tier!=test";
    from_label: String, "SELECTOR", "Only packets from pods with these labels";
    to_label: String, "SELECTOR", "Only packets to pods with these labels";
    workload: String, "[KIND/]NAME", "Only packets from or to pods of this workload";
    from_workload: String, "[KIND/]NAME", "Only packets from pods of this workload";
    to_workload: String, "[KIND/]NAME", "Only packets to pods of this workload";
    ip: String, "ADDRESS", "Only packets from or to this address or network";
    from_ip: String, "ADDRESS", "Only packets from this address or network";
    to_ip: String, "ADDRESS", "Only packets to this address or network";
    fqdn: String, "NAME", "Only packets from or to an address of this domain name of policies; * stands for any text";
    from_fqdn: String, "NAME", "Only packets from an address of this domain name";
    to_fqdn: String, "NAME", "Only packets to an address of this domain name";
    service: String, "NS/NAME", "Only packets from or to an address of this service";
    from_service: String, "NS/NAME", "Only packets from an address of this service";
    to_service: String, "NS/NAME", "Only packets to an address of this service";
    protocol: String, "PROTOCOL", "Only this protocol: TCP, UDP, SCTP, ICMP, ICMPv6 or a number";
    port: Ports, "N|N-M", "Only packets with this port, or one of this range, at either end";
    from_port: Ports, "N|N-M", "Only packets from this port or range";
    to_port: Ports, "N|N-M", "Only packets to this port or range";
    tcp_flags: String, "FLAGS", "Only TCP packets with all of these flags, such as SYN,ACK";
    reason: String, "REASON", "Only verdicts with this reason; podgate show errors lists them";
    policy: String, "[NS/]NAME", "Only verdicts by this policy";
    node: String, "NAME", "Only verdicts of this node";
}

/// A verdict on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VerdictArg {
    /// forwarded
    #[value(name = "forward", alias = "forwarded")]
    Forwarded,
    /// dropped
    #[value(name = "drop", alias = "dropped")]
    Dropped,
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    fn parsed(arguments: &str) -> Result<ObserveFilters, clap::Error> {
        let namespace =
            clap::Arg::new("namespace").long("namespace").action(clap::ArgAction::Append);
        let command = Filters::augment_args(Command::new("observe")).arg(namespace);
        let matches = command
            .try_get_matches_from(["observe"].into_iter().chain(arguments.split_whitespace()))?;
        let namespaces = matches.get_many::<String>("namespace").into_iter().flatten();
        Ok(Filters::from_arg_matches(&matches)?.wanted(&namespaces.cloned().collect::<Vec<_>>()))
    }

    #[test]
    fn not_inverts_the_filters_behind_it_alone() {
        let usual = ObserveFilters::default;
        let found = parsed(
            "--namespace a --verdict DROPPED --port 80 --not --to-pod shop/db --port 8000-8010 --namespace b",
        );
        let except = ObserveFilters {
            to_pod: "shop/db".into(),
            port: "8000-8010".parse::<Ports>().unwrap().into(),
            namespace: "b".into(),
            ..usual()
        };
        let expected = ObserveFilters {
            verdict: Verdict::Dropped.into(),
            port: 80.into(),
            namespace: "a".into(),
            except: Some(Box::new(except)),
            ..usual()
        };
        assert_eq!(found.unwrap(), expected);
        let found = parsed("--namespace a --namespace b --verdict drop").unwrap();
        assert_eq!((found.namespace.0.len(), found.except), (2, None));
        assert!(parsed("--verdict drop --not").is_err());
        assert!(parsed("--port 90-80").is_err());
    }
}
