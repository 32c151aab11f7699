//! Answers of the probe: `agreement` with the switch and in any `company` of questions, policies (`verdicts`), cluster-wide ones (`firewalls`), `services`,
//! domain `names`.

mod agreement;
mod company;
mod firewalls;
mod names;
mod services;
mod verdicts;

use std::fs;

use policy_tools::probe::{Answer, Case, Prober, cases};
use testkit::TempDir;
use testkit::manifests::{node, pod, policy};

/// A cluster out of YAML documents.
struct Cluster(Prober);

impl Cluster {
    fn new(manifests: &str) -> Self {
        let folder = TempDir::new("probe");
        let file = folder.path().join("cluster.yaml");
        fs::write(&file, manifests).unwrap();
        let loaded = control::manifests::load(&[file]);
        assert_eq!(loaded.faults, []);
        Self(Prober::new(loaded.objects, []).unwrap())
    }

    fn answers(&mut self, questions: &[&str]) -> Vec<Answer> {
        let cases: Vec<Case> = questions.iter().map(|text| case(text)).collect();
        for (n, case) in cases.iter().enumerate() {
            assert_eq!(self.0.check(n, case), []);
        }
        self.0.answer(cases.iter().map(Case::question)).unwrap()
    }

    /// Each line is a question, `FROM TO PROTOCOL PORT`, and behind a colon its answer,
    /// `VERDICT REASON | BY | BY`.
    #[track_caller]
    fn says(&mut self, lines: &[&str]) {
        let (questions, expected): (Vec<&str>, Vec<&str>) =
            lines.iter().map(|line| line.split_once(": ").expect("question: answer")).unzip();
        let answers = self.answers(&questions);
        let told: Vec<String> = questions
            .iter()
            .zip(&answers)
            .map(|(it, answer)| format!("{it}: {}", text(answer)))
            .collect();
        let wanted: Vec<String> =
            questions.iter().zip(expected).map(|(it, answer)| format!("{it}: {answer}")).collect();
        assert_eq!(told, wanted);
    }
}

fn text(answer: &Answer) -> String {
    let by: String = answer.by.iter().map(|origin| format!(" | {origin}")).collect();
    format!("{} {}{by}", answer.verdict, answer.reason)
}

/// `FROM TO PROTOCOL PORT` as a case.
fn case(text: &str) -> Case {
    let mut words = text.split_whitespace();
    let mut word = || words.next().unwrap_or("null");
    let (from, to, protocol, port) = (word(), word(), word(), word());
    let yaml = format!("{{from: '{from}', to: '{to}', protocol: {protocol}, port: {port}}}");
    cases::read(yaml.as_bytes()).unwrap_or_else(|faults| panic!("{text}: {faults:?}")).remove(0)
}
